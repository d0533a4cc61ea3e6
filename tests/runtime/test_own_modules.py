"""A model of a package's own modules: a pipeline of it computes what the whole module does, in one piece."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from engine.commands.train import command
from engine.errors import InputError
from engine.inputs import parse
from engine.job.checkpoint.manifest import find
from engine.job.job import TrainJob
from engine.job.model_document import ModuleModel
from engine.job.module_access import MODULES, opened_modules, require_open
from engine.nn.model import build_layer
from engine.nn.own_module import check_parts
from engine.train.corpus import corpus_of
from engine.train.export import export
from tests.runtime import swap_jobs
from tests.runtime.jobs import Run, document, job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZES = {"hidden": 32, "vocab": 256, "layers": 4}
MODEL = {"module": "own_blocks:parts", "arguments": SIZES, "layers": 4, "hidden": 32, "seq": 16}

# With the first device that is set, torch keeps a list of the functions that make tensors. transformers
# replaces torch.linspace while it makes a model: had a test of another file done that first, linspace would
# ignore `meta`.
with torch.device("meta"):
    torch.empty(0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's package is on the path, here and in the processes of runs, and open to runs."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv(MODULES, "own_blocks")


def whole_losses(of: TrainJob) -> list[float]:
    """Losses of the example's own whole model with our first weights, trained as anybody would."""
    from own_blocks import Whole

    torch.set_num_threads(1)
    model = Whole(**SIZES).double()
    layers = [build_layer(of.model, number, of.optimizer.seed).double() for number in range(6)]
    for theirs, ours in zip([model.embedding, *model.layers, model.head], layers, strict=True):
        theirs.load_state_dict(ours.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=of.optimizer.lr)
    corpus, batch = corpus_of(of), of.cell.global_batch
    losses = []
    for step in range(of.optimizer.steps):
        tokens, targets = (torch.from_numpy(part) for part in corpus.batch(step, batch, np.arange(batch)))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("policy", [{"policy": "zb-h1", "recompute": False}, {"policy": "atlas"}])
def test_losses_are_those_of_the_module_in_one_piece(policy: dict[str, Any], tmp_path: Path) -> None:
    saves = {"checkpoint": {"dir": str(tmp_path / "c"), "every": 3}}
    of = job(model=MODEL, dtype="fp64", steps=3, **policy, **saves)
    result = Run(of, str(tmp_path / "log")).result()
    assert result["losses"] == pytest.approx(whole_losses(of), rel=1e-9)
    assert result["losses"][-1] < result["losses"][0]
    # On other stages it resumes to the bit; and it is no model that transformers knows.
    again = job(model=MODEL, dtype="fp64", steps=4, resume=str(tmp_path / "c"), **policy)
    assert Run(again, str(tmp_path / "again")).result()["losses"] == pytest.approx(
        whole_losses(again)[3:], rel=1e-9
    )
    with pytest.raises(InputError, match=r"model.module own_blocks:parts.*transformers knows"):
        export(find(str(tmp_path / "c")), tmp_path / "out")


@pytest.mark.usefixtures("opened")
def test_first_weights_are_the_packages_own_and_follow_from_the_seed_and_the_layer() -> None:
    model = parse(ModuleModel, MODEL)
    one, same, other, next_one = (build_layer(model, n, s) for n, s in ((1, 0), (1, 0), (1, 5), (2, 0)))
    assert torch.equal(one.out.weight, same.out.weight)
    assert not torch.equal(one.out.weight, other.out.weight)
    assert not torch.equal(one.out.weight, next_one.out.weight)
    assert one.out.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.1)


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": "own_blocks:nothing"}, "is not installed here: .*nothing"),
        ({"module": "own_blocks.none:parts"}, "is not installed here: .*own_blocks.none"),
        ({"arguments": {"hidden": 32}}, "cannot be called with model.arguments: .*vocab"),
        ({"module": "own_blocks:dataclass", "arguments": {}}, "has no embedding"),
        ({"hidden": 64}, r"embedding\(\) must give \(1, 16, 64\), and gives \(1, 16, 32\)"),
        ({"vocab": 300}, r"head\(\) must give \(1, 16, 300\), and gives \(1, 16, 256\)"),
    ],
)
def test_what_the_package_does_not_give_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_parts(parse(ModuleModel, {**MODEL, **changes}))
    assert caught.value.field == "model.module"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {**MODEL, "module": "own_blocks"}}, "model.module"),
        ({"model": {**MODEL, "module": "own_blocks:a.b"}}, "model.module"),
        ({"model": {**MODEL, "config": {}}}, "model.config"),
        ({"model": MODEL, "tp": 2, "pipelines": 1}, "tp"),
    ],
)
def test_documents_that_name_no_module_or_ask_too_much(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        job(**changes)
    assert caught.value.field == field


def test_a_swap_run_does_not_take_them() -> None:
    with pytest.raises(InputError, match="not available with strategy swap"):
        swap_jobs.job(model=MODEL)


def test_a_module_that_is_not_opened_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the command, nor by a host, nor by what builds layers; each names the setting."""
    marker = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nparts = None")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    monkeypatch.setenv(MODULES, "own_blocks,evil_twin,evil.inner")
    request = document(model={**MODEL, "module": "evil:parts"}, steps=1)
    (tmp_path / "job.json").write_text(json.dumps(request))
    answer = CliRunner().invoke(command, [str(tmp_path / "job.json")])
    assert isinstance(answer.exception, InputError)
    assert answer.exception.field == "model.module"
    assert MODULES in answer.exception.allowed
    with pytest.raises(InputError, match=MODULES):
        build_layer(parse(ModuleModel, request["model"]), 0, 0)
    run = Run(parse(TrainJob, request), str(tmp_path / "log"))
    assert run.group.wait(120)
    details = [event["detail"] for event in run.of_kind("rank") if event["state"] == "failed"]
    assert details
    assert all(MODULES in detail for detail in details)
    assert not marker.exists()
    assert "evil" not in sys.modules


def test_what_a_machine_opens() -> None:
    assert opened_modules({}) == ()
    assert opened_modules({MODULES: " a.b , c "}) == ("a.b", "c")
    with pytest.raises(InputError, match="names of packages") as caught:
        opened_modules({MODULES: "a b"})
    assert caught.value.field == MODULES
    for module in ("a.b:x", "a.b.c:x", "c:x"):
        require_open(module, {MODULES: "a.b,c"})
    for module in ("a:x", "a.bc:x", "os:system"):
        with pytest.raises(InputError, match=r"a.b, c"):
            require_open(module, {MODULES: "a.b,c"})
