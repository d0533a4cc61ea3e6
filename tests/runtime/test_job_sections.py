"""The job's document in sections and flat: one meaning, and errors that name fields as they were written."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from engine.commands.train import command
from engine.errors import InputError
from engine.inputs import parse
from engine.job.changed import changed, fields_of, value_at
from engine.job.flat import NOTICE, converted, in_sections
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, single_machine
from engine.job.sections.paths import PATHS
from tests.runtime import swap_jobs
from tests.runtime.jobs import document, job

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TRAINED = ("atlas", "demo", "swap-train", "varuna-single-tcp")

optional = {
    "accumulation": st.integers(1, 3),
    "activation_bytes": st.just(10**6),
    "adapt": st.fixed_dictionaries({}, optional={"deviation": st.floats(0.01, 1), "policy": st.just("auto")}),
    "checkpoint": st.fixed_dictionaries({"dir": st.just("/c"), "every": st.integers(1, 9)}),
    "clip": st.floats(0.1, 10),
    "connections": st.one_of(st.just("auto"), st.integers(1, 8)),
    "data": st.one_of(st.just("/text"), st.just({"north": "/n", "south": "/s"})),
    "dtype": st.sampled_from(["fp32", "bf16", "fp64"]),
    "lr": st.floats(1e-6, 1),
    "lr_schedule": st.fixed_dictionaries({"warmup_steps": st.integers(0, 3), "decay": st.just("cosine")}),
    "memory_limit": st.integers(3, 9),
    "policy": st.sampled_from(["atlas", "varuna", "gpipe", "1f1b", "zb-h1"]),
    "recompute": st.booleans(),
    "recovery": st.fixed_dictionaries({}, optional={"attempts": st.integers(1, 9)}),
    "resume": st.just("/c/step-1"),
    "seed": st.integers(0, 99),
    "sharing": st.sampled_from(["spatial", "temporal"]),
    "spike": st.one_of(st.just(False), st.fixed_dictionaries({"factor": st.floats(1.5, 9)})),
    "time_limit_s": st.floats(1, 60),
    "tls": st.just({"certificate": "/a", "key": "/b", "authority": "/c"}),
    "validation": st.fixed_dictionaries({"every": st.integers(1, 9)}),
    "weight_decay": st.floats(0, 1),
}
changes = st.fixed_dictionaries({}, optional=optional)  # type: ignore[arg-type]
EMULATED = {"device": "emulated", "times_ms": {"forward": 20, "recompute": 20, "backward": 40}}


def by_hand(flat: dict[str, Any]) -> dict[str, Any]:
    """A flat pipeline document in sections, field by field."""
    fields = {PATHS.get(name, name): value for name, value in flat.items()}
    return changed({}, {**fields, "strategy.kind": "pipeline"})


@given(changes=changes)
def test_a_flat_document_and_one_in_sections_are_the_same_job(changes: dict[str, Any]) -> None:
    flat = document(**EMULATED, **changes)
    sections = by_hand(flat)
    assert converted(flat).document == sections
    assert not converted(sections).is_flat
    assert parse(TrainJob, flat) == parse(TrainJob, sections)


@given(changes=changes)
def test_what_a_job_writes_reads_as_the_same_job(changes: dict[str, Any]) -> None:
    of = job(**EMULATED, **changes)
    assert parse(TrainJob, of.to_document()) == of
    assert parse(TrainJob, of.model_dump()) == of
    assert parse(TrainJob, json.loads(json.dumps(of.to_document()))) == of
    assert not converted(of.to_document()).is_flat


@pytest.mark.parametrize("changes", [{}, {"pipelines": 2, "dtype": "fp32"}, {"adapt": None, "seed": 3}])
def test_so_do_jobs_that_swap(changes: dict[str, Any]) -> None:
    flat = swap_jobs.document(**changes)
    sections = in_sections(flat)
    assert sections["strategy"] == {"kind": "swap", "gpu": swap_jobs.GPU}
    assert parse(TrainJob, flat) == parse(TrainJob, sections)
    of = parse(TrainJob, flat)
    assert parse(TrainJob, of.to_document()) == of
    # as earlier versions wrote the whole document out
    written = {**flat, "stages": 1, "policy": "swap", "recompute": True, "time_limit_s": 60.0}
    assert parse(TrainJob, written) == of


@pytest.mark.parametrize("name", TRAINED)
def test_the_examples_are_in_sections(name: str) -> None:
    example = json.loads((EXAMPLES / f"{name}.json").read_text())
    assert not converted(example).is_flat
    parse(TrainJob, example)


def test_every_field_has_one_flat_name() -> None:
    sections = {name: field.annotation for name, field in TrainJob.model_fields.items()}
    inside = {
        f"{section}.{name}"
        for section in ("cell", "data", "device", "optimizer", "persistence", "failures")
        for name in sections[section].model_fields  # type: ignore[union-attr]
    }
    inside |= {f"strategy.{name}" for name in type(job().strategy).model_fields}
    inside.remove("data.prepared")  # no flat document had it
    assert sorted(PATHS.values()) == sorted(inside)


WRONG = [
    ({"lr": -1}, "lr"),
    ({"steps": None}, "steps"),
    ({"stages": None}, "stages"),
    ({"microbatches": 0}, "microbatches"),
    ({"dc_of_stage": [0, 0, 2]}, "dc_of_stage[2]"),
    ({"policy": "atlos"}, "policy"),
    ({"policy": None}, "policy"),
    ({"policy": "gpipe", "memory_limit": "many"}, "memory_limit"),
    ({"checkpoint": {"dir": "x", "every": 1, "keeep": 2}}, "checkpoint.keeep"),
    ({"recovery": {"attempts": 0}}, "recovery.attempts"),
    ({"adapt": {"policy": "sam"}}, "adapt.policy"),
    ({"lr_schedule": {"decay": "cosin"}}, "lr_schedule.decay"),
    ({"dtype": "fp16"}, "dtype"),
    ({"device": "gpu"}, "device"),
    ({"device": "emulated"}, "times_ms"),
    ({**EMULATED, "times_ms": {"forward": [20, 4, 20], "backward": 40}}, "times_ms.forward[1]"),
    ({"data": {"north": "/n"}}, "data.south"),
    ({"data": 5}, "data"),
    ({"validation": {"every": 0}}, "validation.every"),
    ({"model": {"layers": 2, "hidden": 32, "heads": 2, "seq": 16}}, "model.layers"),
    ({"resume": True}, "resume"),
]


@pytest.mark.parametrize(("changes", "field"), WRONG, ids=lambda v: str(v)[:40])
def test_an_error_names_the_field_as_it_was_written(changes: dict[str, Any], field: str) -> None:
    flat = document(**changes)
    with pytest.raises(InputError) as of_flat:
        parse(TrainJob, flat, at="job")
    assert of_flat.value.field == f"job.{field}"
    with pytest.raises(InputError) as of_sections:
        parse(TrainJob, by_hand(flat))
    name, end = next((n, field[len(n) :]) for n in (field.partition(".")[0].partition("[")[0],))
    assert of_sections.value.field == PATHS.get(name, name) + end
    assert of_sections.value.allowed == of_flat.value.allowed


@pytest.mark.parametrize(
    ("strategy", "field", "message"),
    [
        ({"kind": "pipelin", "policy": "atlas"}, "strategy.kind", "did you mean 'pipeline'"),
        ({"policy": "atlas"}, "strategy.kind", "required"),
        ({"kind": "pipeline", "polcy": "atlas"}, "strategy.polcy", "did you mean 'policy'"),
        ({"kind": "swap", "gpu": swap_jobs.GPU, "policy": "atlas"}, "strategy.policy", "unknown field"),
        (
            {"kind": "swap", "gpu": {**swap_jobs.GPU, "memory_bytes": -1}},
            "strategy.gpu.memory_bytes",
            "greater",
        ),
        ({"kind": "swap"}, "strategy.gpu", "required"),
        ([], "strategy", "unknown strategy"),
    ],
)
def test_a_strategy_is_told_by_its_kind(strategy: Any, field: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse(TrainJob, {**by_hand(document()), "strategy": strategy})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("mixed", "field"),
    [
        ({"lr": 0.1, "optimizer": {"steps": 3}}, "lr"),
        ({"stages": 3, "cell": {"microbatches": 3}}, "stages"),
        ({"times_ms": {"forward": 20, "backward": 40}, "device": {"kind": "emulated"}}, "times_ms"),
        ({"validation": {"every": 2}, "data": {"files": "/text"}}, "validation"),
        ({"policy": "atlas", "strategy": {"kind": "pipeline"}}, "policy"),
        ({"swap": {"gpu": swap_jobs.GPU}, "strategy": {"kind": "swap"}}, "swap"),
        ({"recovery": {}, "failures": {}}, "recovery"),
    ],
)
def test_a_section_is_written_in_one_of_the_two_ways(mixed: dict[str, Any], field: str) -> None:
    base = {"datacenters": document()["datacenters"], "model": document()["model"]}
    with pytest.raises(InputError, match="has the section") as caught:
        parse(TrainJob, {**base, **mixed})
    assert caught.value.field == field


def test_sections_of_their_own_may_stand_beside_flat_fields() -> None:
    flat = document()
    rest = {name: flat[name] for name in flat if PATHS.get(name, "").partition(".")[0] != "optimizer"}
    mixed = {**rest, "optimizer": {"steps": 3, "lr": 1e-3, "seed": 7}}
    assert parse(TrainJob, mixed) == job()
    with pytest.raises(InputError) as caught:
        parse(TrainJob, {**mixed, "optimizer": {"steps": 3, "lr": -1}})
    assert caught.value.field == "optimizer.lr"


def test_an_unknown_field_is_near_a_flat_one() -> None:
    with pytest.raises(InputError, match="did you mean 'weight_decay'") as caught:
        parse(TrainJob, document(weight_decai=1))
    assert caught.value.field == "weight_decai"


@pytest.mark.parametrize(
    ("files", "flat"),
    [({"files": "/a", "north": "/b"}, True), ({"files": "/a"}, False), ({"validation": "/a"}, True)],
)
def test_data_centres_may_be_called_like_fields(files: dict[str, str], flat: bool) -> None:
    sites = [{"name": name, "gpus": 8} for name in files]
    of = {**document(), "datacenters": sites, "links": [], "dc_of_stage": [0, 0, 0], "data": files}
    read = converted(of)
    assert read.document["data"] == ({"files": files} if flat else files)
    parse(TrainJob, of)


def test_a_misspelt_field_of_the_data_is_near_the_right_one() -> None:
    with pytest.raises(InputError, match="did you mean 'files'") as caught:
        parse(TrainJob, {**by_hand(document()), "data": {"file": "/text"}})
    assert caught.value.field == "data.file"


def test_a_launch_of_an_earlier_version_still_reads() -> None:
    spec = single_machine(job(), run="r", log_dir="/l")
    written = json.loads(spec.to_json())
    written["job"] = document()
    assert LaunchSpec.from_json(json.dumps(written)).job == spec.job


def test_a_change_by_path_leaves_the_document_as_it_was() -> None:
    of = in_sections(document(checkpoint={"dir": "/c", "every": 2}))
    before = json.dumps(of)
    new = changed(of, {"optimizer.steps": 9, "persistence.checkpoint": None, "failures.recovery": {}})
    assert json.dumps(of) == before
    assert (new["optimizer"]["steps"], new["failures"]) == (9, {"recovery": {}})
    assert "persistence" not in new, "nothing is left in it"
    assert value_at(new, "optimizer.steps") == fields_of(new)["optimizer.steps"] == 9
    assert value_at(new, "persistence.checkpoint", "none") == "none"


ONE = {"stages": 1, "pipelines": 1, "dc_of_stage": [0], "policy": "gpipe", "recompute": False, "steps": 2}


@pytest.mark.parametrize("flat", [True, False])
def test_the_notice_is_on_stderr_and_the_answer_is_json(tmp_path: Path, flat: bool) -> None:
    of = document(**ONE) if flat else in_sections(document(**ONE))
    (tmp_path / "job.json").write_text(json.dumps(of))
    call = [str(tmp_path / "job.json"), "--json"]
    answer = CliRunner().invoke(command, call, standalone_mode=False)
    assert answer.exception is None
    assert answer.stderr.splitlines().count(f"meridian: {NOTICE}") == flat
    assert json.loads(answer.stdout)["steps"] == 2
    assert "flat" not in answer.stdout


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"data": "/no/such/text"}, "data"), ({"lr": -1}, "lr"), ({"data": {"north": "a\0b"}}, "data.north")],
)
def test_a_refusal_has_no_notice(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    for of, named in ((document(**ONE, **changes), field), (by_hand(document(**ONE, **changes)), None)):
        (tmp_path / "job.json").write_text(json.dumps(of))
        answer = CliRunner().invoke(command, [str(tmp_path / "job.json")], standalone_mode=False)
        assert isinstance(answer.exception, InputError)
        section, _, rest = field.partition(".")
        expected = named or PATHS[section] + (f".{rest}" if rest else "")
        assert answer.exception.field == expected
        assert answer.stderr == ""
