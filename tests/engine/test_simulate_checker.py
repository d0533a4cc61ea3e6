"""The independent checker catches each kind of broken answer."""

import copy
from collections.abc import Callable

import pytest

from tests.checker import check
from tests.engine import fig6
from tests.engine.test_simulate_properties import answer

FIG6 = {**fig6.FIG6, "memory_limit": 4, "full_limit": 1}
TIMES = {"forward": 1, "backward": 1, "weight": 1}
WAVE = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 1],
    "pipelines": 2,
    "microbatches": 6,
    "times": TIMES,
    "wan": {"latency": 1, "transfer": 0.5},
    "lan": {"transfer": 0.25},
    "memory_limit": 4,
    "policy": "zb-v",
}
LOOP = {
    **WAVE,
    "policy": "crosspipe-loop",
    "sharing": "temporal",
    "times": {**TIMES, "recompute": 1},
    "full_limit": 1,
}
SUB = {**WAVE, "policy": "crosspipe-udsub"}


def _span(output: dict, **fields: object) -> dict:
    return next(s for s in output["spans"] if all(s.get(k) == v for k, v in fields.items()))


def _shift(span: dict, by: float) -> None:
    for edge in ("start", "end", "arrives"):
        if edge in span:
            span[edge] += by


def shifted(by: float, **fields: object) -> Callable[[dict], None]:
    return lambda output: _shift(_span(output, **fields), by)


def lost(**fields: object) -> Callable[[dict], None]:
    return lambda output: output["spans"].remove(_span(output, **fields))


def twice(**fields: object) -> Callable[[dict], None]:
    return lambda output: output["spans"].append(dict(_span(output, **fields)))


def changed(change: dict, **fields: object) -> Callable[[dict], None]:
    return lambda output: _span(output, **fields).update(change)


def with_figure(field: str, value: object) -> Callable[[dict], None]:
    return lambda output: output.update({field: value})


def chose(field: str, value: object) -> Callable[[dict], None]:
    return lambda output: output["chosen"].update({field: value})


def _busy_link(output: dict) -> None:
    first = _span(output, track="wan", from_stage=1, to_stage=2, pipeline=0, microbatch=0)
    second = _span(output, track="wan", from_stage=1, to_stage=2, pipeline=0, microbatch=1)
    second.update(start=first["start"], end=first["end"], arrives=first["arrives"])


def _swap_messages(output: dict) -> None:
    """Two messages of one link, of different chunks, sent at each other's time: one leaves too early."""
    first = _span(
        output, track="wan", from_stage=1, to_stage=2, payload="activation", microbatch=0, pipeline=0
    )
    other = _span(output, track="wan", from_stage=1, to_stage=2, payload="gradient", microbatch=0, pipeline=0)
    times = {edge: (first[edge], other[edge]) for edge in ("start", "end", "arrives")}
    for edge, (mine, its) in times.items():
        first[edge], other[edge] = its, mine


BROKEN_FIG6 = {
    "ops overlap": shifted(-0.5, op="F", stage=0, microbatch=1, pipeline=0),
    "transfer missing": lost(track="wan", microbatch=2),
    "transfer twice": twice(track="wan", microbatch=2),
    "op before its input": shifted(-1, op="F", stage=2, microbatch=0, pipeline=0),
    "sent before produced": shifted(-1, track="wan", microbatch=0, pipeline=0),
    "op too short": lambda output: _shift_end(_span(output, op="B", stage=3, microbatch=2, pipeline=1)),
    "recompute missing": lost(op="R", stage=2, microbatch=1, pipeline=0),
    "op missing": lost(op="B", stage=2, microbatch=1, pipeline=0),
    "op twice": twice(op="F", stage=2, microbatch=1, pipeline=0),
    "link carries two": _busy_link,
    "payload": changed({"payload": "gradient"}, track="wan", payload="activation"),
    "track": changed({"track": "lan"}, track="wan"),
    "unknown microbatch": changed({"microbatch": 9}, op="F", stage=0, microbatch=3),
    "W of a policy that does not split": changed({"op": "W"}, op="R"),
    "makespan": with_figure("makespan", 35.0),
    "lower_bound": with_figure("lower_bound", 36.5),
    "utilization": with_figure("utilization", 0.5),
    "largest_stage_span": with_figure("largest_stage_span", 30.0),
    "peak_in_flight": with_figure("peak_in_flight", [[4] * 6, [4] * 6]),
    "policy": with_figure("policy", "varuna"),
    "sharing": chose("sharing", "spatial"),
    "rule": chose("recompute_rule", "late"),
}
BROKEN_WAVE = {
    "chunks exchange positions": with_figure("traversal", [[s, c] for c in range(2) for s in range(4)]),
    "the other chunk's op": changed({"chunk": 1}, op="F", chunk=0, stage=2, microbatch=3),
    "within a stage no transfer": lambda output: output["spans"].append(_turn()),
    "LAN transfer missing": lost(track="lan", microbatch=2),
    "W missing": lost(op="W", stage=1, microbatch=2),
    "W before B": shifted(-2, op="W", stage=0, microbatch=0, pipeline=0, chunk=0),
    "messages swapped": _swap_messages,
    "half the time": lambda output: _shift_end(_span(output, op="F", stage=3, microbatch=5, chunk=1), 0.5),
    "peak counted in chunks": with_figure("peak_in_flight", [[8.0] * 4] * 2),
    "hand-over before its F": shifted(-0.5, op="F", stage=3, microbatch=0, chunk=1, pipeline=0),
    "arrives": lambda output: _span(output, track="wan").update(arrives=0.0),
}
BROKEN_LOOP = {
    "the opposite direction": changed({"to_stage": 2}, from_stage=3, to_stage=0, payload="activation"),
    "wrap missing": lost(track="wan", from_stage=3, to_stage=0, microbatch=1),
    "wrap is a LAN hop": changed({"track": "lan"}, from_stage=3, to_stage=0, payload="activation"),
    "link of another pipeline": lambda output: _on_top(output),
}
BROKEN_SUB = {
    "sub-blocks in the wrong order": shifted(-1, op="F", stage=0, chunk=1, microbatch=0, pipeline=0),
    "the first sub-block sends": changed({"chunk": 0}, track="wan", payload="activation"),
}


def _shift_end(span: dict, by: float = -1) -> None:
    span["end"] += by


def _turn() -> dict:
    return {
        "track": "lan",
        "pipeline": 0,
        "from_stage": 3,
        "to_stage": 3,
        "microbatch": 0,
        "chunk": 0,
        "payload": "activation",
        "start": 9.0,
        "end": 9.0,
        "arrives": 9.0,
    }


def _on_top(output: dict) -> None:
    """A transfer of pipeline 1 at the time of one of pipeline 0 over the link that they share."""
    fields = {"track": "wan", "from_stage": 1, "to_stage": 2, "payload": "activation", "chunk": 0}
    first = _span(output, pipeline=0, microbatch=5, **fields)
    _span(output, pipeline=1, microbatch=0, **fields).update(
        {edge: first[edge] for edge in ("start", "end", "arrives")}
    )


CASES = [
    pytest.param(document, broken, id=f"{document['policy']}: {name}")
    for document, all_broken in (
        (FIG6, BROKEN_FIG6),
        (WAVE, BROKEN_WAVE),
        (LOOP, BROKEN_LOOP),
        (SUB, BROKEN_SUB),
    )
    for name, broken in all_broken.items()
]


@pytest.mark.parametrize(("document", "broken"), CASES)
def test_what_is_broken_is_caught(document: dict, broken: Callable[[dict], None]) -> None:
    output = answer(document)
    check(document, output)
    changed_output = copy.deepcopy(output)
    broken(changed_output)
    assert changed_output != output
    with pytest.raises(AssertionError):
        check(document, changed_output)


@pytest.mark.parametrize(
    ("document", "limit"),
    [
        (FIG6, {"memory_limit": 3}),
        (FIG6, {"microbatches": 5}),
        (FIG6, {"recompute_rule": "late"}),
        (WAVE, {"memory_limit": 3}),
        (WAVE, {"chunks": 3}),
        (WAVE, {"sharing": "temporal"}),
        (WAVE, {"dc_of_stage": [0, 1, 1, 1]}),
        (WAVE, {"lan": {}}),
        (WAVE, {"wan": {"latency": 2, "transfer": 0.5}}),
        (WAVE, {"times": {**TIMES, "weight": 0}}),
        (LOOP, {"dc_of_stage": [0, 1, 1, 0]}),
        (LOOP, {"times": TIMES}),
    ],
)
def test_an_answer_to_another_question_is_caught(document: dict, limit: dict) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check({**document, **limit}, answer(document))


@pytest.mark.parametrize("rule", ["jit", "late", "blocking"])
def test_a_broken_recompute_rule_is_caught(rule: str) -> None:
    document = {**FIG6, "policy": "atlas", "recompute_rule": "idle"}
    output = answer(document)
    output["chosen"]["recompute_rule"] = rule
    with pytest.raises(AssertionError):
        check({**document, "recompute_rule": rule}, output)


def test_full_sets_are_counted() -> None:
    document = {**FIG6, "full_limit": None, "recompute_rule": "idle", "policy": "1f1b"}
    output = answer(document)
    check(document, output)
    late = _span(output, op="R", stage=0, microbatch=3, pipeline=0)
    assert late  # an R moved to right after its F would be held together with others
