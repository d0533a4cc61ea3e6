"""Events: what is written is read again, and what is none is refused, whatever its kind."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.job.events.event import KINDS, MOST_BYTES, from_dict, from_json
from engine.job.events.node import Heartbeat
from engine.job.events.training import Log, RankState, Result, Spans, Step
from engine.simulate.spans import Span
from tests.events import EXAMPLES, T0, event

times = st.floats(1.0, 1e10)
ordinals = st.integers(0, 2**31 - 1)
spans = st.builds(
    Span,
    track=st.just("gpu"),
    pipeline=ordinals,
    stage=ordinals,
    op=st.sampled_from("FRBW"),
    microbatch=ordinals,
    start=times,
    end=times,
) | st.builds(
    Span,
    track=st.sampled_from(["wan", "lan"]),
    pipeline=ordinals,
    from_stage=ordinals,
    to_stage=ordinals,
    payload=st.sampled_from(["activation", "gradient"]),
    start=times,
    end=times,
    arrives=times,
    bytes=st.integers(0, 2**50),
)


def test_there_is_an_example_of_each_kind() -> None:
    assert EXAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_read_as_it_was_written(kind: str) -> None:
    original = event(kind)
    assert type(original) is KINDS[kind]
    assert from_json(original.to_json()) == original
    assert json.loads(original.to_json()) == original.to_dict()
    assert original.to_dict() == {"kind": kind, **EXAMPLES[kind]}, "the wire has the fields that it had"
    sent = original.sent_by("a", 7)
    assert from_json(sent.to_json()) == sent
    assert {"node": "a", "id": 7}.items() <= sent.to_dict().items()


@given(st.lists(spans, max_size=5), ordinals, times)
def test_spans_come_through_unchanged(some: list[Span], iteration: int, t: float) -> None:
    original = Spans(rank=3, iteration=iteration, start=t, end=t, spans=tuple(some))
    assert from_json(original.to_json()) == original
    assert original.to_dict()["spans"] == [span.as_dict() for span in some]


@given(st.floats(), st.floats(allow_nan=False, allow_infinity=False))
def test_figures_come_through_bit_by_bit_and_what_is_not_finite_as_null(loss: float, norm: float) -> None:
    original = Step(iteration=0, loss=loss, grad_norm=norm, learning_rate=0.1, tokens=1, t=T0)
    read = from_json(original.to_json())
    assert isinstance(read, Step)
    assert read.grad_norm == norm
    assert read.loss == (loss if abs(loss) < float("inf") else None)


@given(st.text())
def test_any_text_can_be_a_line(text: str) -> None:
    original = Log(rank=0, line=text + "\ud800\x00", t=T0)
    assert from_json(original.to_json()) == original
    assert "\x00" not in original.line


def test_a_result_is_the_document_that_it_is() -> None:
    outcome: dict[str, Any] = {"steps": 2, "losses": [0.1], "validation": [{"step": 2, "loss": None}]}
    original = Result(**outcome).of("r1", 3, 2)
    assert original.to_dict() == {"kind": "result", "run": "r1", "generation": 3, **outcome}
    read = from_json(original.to_json())
    assert isinstance(read, Result)
    assert read.outcome == outcome


def test_a_later_start_is_named_by_states_of_ranks_only() -> None:
    assert event("rank").of("r1", 1, 2).to_dict()["start"] == 2  # type: ignore[union-attr]
    assert "start" not in event("rank").of("r1", 1, 1).to_dict()  # type: ignore[union-attr]
    assert event("spans").of("r1", 1, 2).to_dict()["start"] == T0  # type: ignore[union-attr]


def refused(document: dict[str, Any]) -> str | None:
    """Why it is no event; where it is one, it can be written and read again."""
    try:
        read = from_dict(document)
    except ValueError as error:
        return str(error)
    assert from_json(read.to_json()).to_dict() == read.to_dict()
    return None


WRONG = (None, True, "x", -1, 1.5, float("nan"), 2**70, [], {}, [[]], {"": 0})


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_event_is_refused_with_its_field(kind: str) -> None:
    """Whatever is in a field: the event is refused, with the field's name, or can be written and read."""
    whole = {"kind": kind, **EXAMPLES[kind]}
    required = [n for n, f in KINDS[kind].model_fields.items() if f.is_required() and n != "kind"]
    for name in required:
        name = KINDS[kind].model_fields[name].serialization_alias or name
        with pytest.raises(ValueError, match=rf"{kind}\.{name}: Field required"):
            from_dict({key: value for key, value in whole.items() if key != name})
    for name in (*EXAMPLES[kind], "run", "generation", "id", "node"):
        for wrong in WRONG:
            why = refused({**whole, name: wrong})
            assert why is None or why.startswith(f"{kind}.{name}")


@pytest.mark.parametrize(
    "text", ["", "5", "[]", "{", "{}", '{"kind": 5}', '{"kind": "x"}', "[" * 9999, "1" * 5000]
)
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_a_newer_version_may_add_a_field() -> None:
    assert from_dict({"kind": "heartbeat", **EXAMPLES["heartbeat"], "new": 1}) == event("heartbeat")


def test_events_cannot_be_changed() -> None:
    original = event("heartbeat")
    assert isinstance(original, Heartbeat)
    with pytest.raises(ValueError, match="frozen"):
        original.lost = 0  # type: ignore[misc]


def test_ends_of_ranks_are_ends() -> None:
    assert [state.value for state in RankState if state.is_end] == ["finished", "failed", "stopped", "left"]


def test_an_event_has_a_bound() -> None:
    """What is longer is not parsed: a node may send anything."""
    whole = event("log").to_json()
    assert from_json(whole + b" " * (MOST_BYTES - len(whole))).kind == "log"
    with pytest.raises(ValueError, match="more than 8,388,608 bytes"):
        from_json(whole + b" " * (MOST_BYTES - len(whole) + 1))
