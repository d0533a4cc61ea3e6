"""`model: {config}` of a training job: what is read, what is refused, by field."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.commands.train import command
from engine.errors import InputError
from engine.inputs import parse
from engine.job.checkpoint.manifest import DataPosition, Manifest
from engine.job.file_access import with_files
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.job.memory import stage_memory
from engine.job.model_document import ConfigModel
from engine.job.planned import schedule_of
from engine.job.predict import predict
from engine.run import gpus
from tests.runtime.decoders import model_of
from tests.runtime.jobs import document

MOE = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def job(model: dict[str, Any], **changes: Any) -> TrainJob:
    return parse(TrainJob, document(model=model, **changes))


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        ({"config": "config.json", "seq": 16}, {}, r"model\.config: 'config.json'.*path"),
        ({"config": model_of("llama")["config"]}, {}, r"model\.seq: .*required"),
        ({**model_of("llama"), "layers": 3}, {}, r"model\.layers: 3: unknown field, allowed: config, seq"),
        ({"config": {"vocab_size": 300}, "seq": 16}, {}, r"model\.config\.model_type"),
        (model_of("llama", hidden_sise=3), {}, r"model\.config\.hidden_sise.*hidden_size"),
        (model_of("gpt2", n_positions=8), {}, r"model\.seq: 16: at most the model's 8 positions"),
        (model_of("llama", vocab_size=99), {}, r"model\.config\.vocab_size: 99: at least 256"),
        (model_of("llama", quantization_config={"bits": 4}), {}, r"quantization_config.*left out"),
        (model_of("llama", **MOE), {}, r"model\.config\.model_type: 'mixtral': a dense decoder"),
        (model_of("llama", num_hidden_layers=2), {}, r"model\.layers: 2: at least one layer per stage"),
        (
            model_of("gemma2"),
            {"tp": 2},
            r"tp: 2: 1 with model\.config: layers of gemma2 are not cut, .*llama",
        ),
        (model_of("qwen2"), {"tp": 2}, r"tp: 2: .*tied embedding is not cut \(tie_word_embeddings\)"),
        (model_of("llama"), {"tp": 2, "dtype": "bf16"}, r"tp: 2: .*\(dtype bf16\)"),
        (model_of("llama"), {"tp": 4}, r"tp: 4: must divide model\.kv_heads = 2"),
        ({**model_of("llama"), "init": ""}, {}, r"model\.init"),
    ],
)
def test_refused(model: dict[str, Any], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        job(model, **changes)


def test_strategy_swap_is_refused_by_name() -> None:
    swap = {
        "strategy": "swap",
        "swap": {"gpu": {"memory_bytes": 1e9, "host_to_device_gb_s": 10}},
        "policy": None,
        "stages": None,
        "dc_of_stage": None,
    }
    with pytest.raises(InputError, match=r"model\.config: 'qwen2': not available with strategy swap"):
        job(model_of("qwen2"), **swap)


def test_the_config_travels_whole_in_the_document() -> None:
    model = model_of("mistral", sliding_window=None)  # null is not the default
    of = job(model)
    assert of.to_document()["model"] == model
    assert parse(TrainJob, of.to_document()) == of


def test_ends_that_share_a_matrix_need_a_link() -> None:
    sites = [{"name": name, "gpus": 2} for name in ("north", "middle", "south")]
    links = [
        {"between": ["north", "middle"], "latency_ms": 1, "bandwidth_gbps": 1},
        {"between": ["middle", "south"], "latency_ms": 1, "bandwidth_gbps": 1},
    ]
    placed: dict[str, Any] = {"datacenters": sites, "links": links, "dc_of_stage": [0, 1, 2]}
    schedule_of(job(model_of("llama"), **placed))
    with pytest.raises(InputError, match="stages in south and north share the embedding"):
        schedule_of(job(model_of("qwen2"), **placed))
    schedule_of(job(model_of("qwen2"), **placed, policy="zb-v", sharing="spatial", recompute=False))


def test_a_tied_matrix_is_counted_where_it_is() -> None:
    tied, apart = (job(model_of("qwen2", tie_word_embeddings=flag), pipelines=1) for flag in (True, False))
    assert apart.model.shape.parameters - tied.model.shape.parameters == 300 * 32
    assert [stage.state_bytes for stage in stage_memory(tied)] == [
        stage.state_bytes for stage in stage_memory(apart)
    ]
    summed = predict(tied, schedule=schedule_of(tied)).allreduce_s
    assert summed[0] == summed[2] > summed[1] == 0.0
    assert predict(apart, schedule=schedule_of(apart)).allreduce_s == (0.0, 0.0, 0.0)


def test_a_machine_without_transformers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"model\.config: 'llama'.*not installed.*meridian\[decode\]"):
        gpus.check_machine(single_machine(job(model_of("llama")), run="x", log_dir=""))


def test_the_folder_of_first_weights_is_a_path_of_the_document() -> None:
    named: list[str] = []
    changed = with_files(
        job({**model_of("llama"), "init": "weights"}), lambda field, path: named.append(field) or f"/{path}"
    )
    assert named == ["model.init"]
    assert isinstance(changed.model, ConfigModel)
    assert changed.model.init == "/weights"


def test_checkpoints_of_two_folders_of_first_weights_are_of_one_line() -> None:
    def line(**changes: Any) -> tuple[Any, ...]:
        manifest = Manifest.model_construct(
            model={**model_of("llama"), **changes},
            dtype="fp32",
            seed=1,
            global_batch=1,
            data=DataPosition(fingerprint="aa", sequences=1),
        )
        return manifest.line

    assert line(init="a") == line(init="b") == line()
    assert line() != line(seq=8)


def test_the_command_reads_a_config_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model_of("llama", num_hidden_layers=2)["config"]))
    values = document(model={"config": str(tmp_path), "seq": 16})
    (tmp_path / "job.json").write_text(json.dumps(values))
    done = CliRunner().invoke(command, [str(tmp_path / "job.json")])
    assert isinstance(done.exception, InputError)  # the file was read: it has too few layers
    assert done.exception.field == "model.layers"
