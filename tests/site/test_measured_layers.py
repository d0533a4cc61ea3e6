"""The swap page takes the layers that `meridian profile --swap --json` measured, in place of a model."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from engine.commands import swap
from tests.site.swap_runs import three_nodes
from tests.site.world import World
from webapp.design.layer_fields import MOST_LAYERS_BYTES
from webapp.design.pages import first_values
from webapp.design.swap_page import SwapForm

pytestmark = pytest.mark.django_db
FILE = Path(__file__).parent / "cases" / "swap_profile.json"  # printed by the command, for 8 blocks on a CPU
TEXT = FILE.read_text()
MEMORY_GIB = 6.5e6 / 2**30  # room for some of the layers
GAPS = "kernel_utilization"


def asked(**changes: Any) -> dict[str, Any]:
    return {
        **first_values(SwapForm),
        "model": "layers",
        "layers": TEXT,
        "memory_gib": MEMORY_GIB,
        **changes,
    }


def with_layer(**changes: Any) -> str:
    """The profile with other values in its third layer; None leaves one out."""
    profile = json.loads(TEXT)
    layer = profile["layers"][2] | changes
    profile["layers"][2] = {name: value for name, value in layer.items() if value is not None}
    return json.dumps(profile)


def of_command(document: dict[str, Any]) -> dict[str, Any]:
    """What `meridian swap` answers to a document."""
    result = CliRunner().invoke(swap.command, ["-", "--json"], input=json.dumps(document))
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.output))


@pytest.fixture
def viewer(world: World) -> Client:
    return world.client("viewer")


def test_the_page_answers_as_the_command_does_for_the_file(viewer: Client) -> None:
    page = viewer.get("/swap/", asked())
    assert page.status_code == 200, page.context["form"].errors
    answer = page.context["answer"]
    assert len(answer["sub_models"]) > 1
    assert answer["compare"]
    document = json.loads(viewer.get("/swap/", asked(**{"as": "document"})).content)
    assert document["layers"] == json.loads(TEXT)["layers"]
    assert answer == of_command(document) == of_command({**document, "layers": str(FILE)})


def test_kernels_and_gaps_are_shown_where_the_profile_has_gaps(viewer: Client) -> None:
    page = viewer.get("/swap/", asked())
    answer, shown = page.context["answer"], page.content.decode()
    assert 0 < answer[GAPS] < answer["utilization"]
    assert f"kernels {100 * answer[GAPS]:.1f} %" in shown
    assert '>Gaps<span class="unit">ms</span>' in shown
    profile = json.loads(TEXT)
    without = {"layers": [{**layer, "gap_s": 0} for layer in profile["layers"]]}
    page = viewer.get("/swap/", asked(layers=json.dumps(without)))
    assert GAPS not in page.context["answer"]
    assert ">Gaps<" not in page.content.decode()


def test_what_a_form_says_of_a_model_does_not_count_for_layers(viewer: Client) -> None:
    changed = asked(mfu=0.1, micro_batch=7, dtype_bytes=2, block_gap_ms=3, config="{")
    assert viewer.get("/swap/", changed).context["answer"] == viewer.get("/swap/", asked()).context["answer"]


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"layers": ""}, "layers", "choose a file, or paste its text"),
        ({"layers": "{"}, "layers", "not JSON"),
        ({"layers": "[]"}, "layers", "must be an object"),
        ({"layers": '{"rows": []}'}, "layers", "must have the field layers"),
        ({"layers": '{"layers": []}'}, "layers", "at least 1"),
        ({"layers": '{"layers": 5}'}, "layers", "list"),
        ({"layers": with_layer(gap_s=9)}, "layers", "layers[2].gap_s: 9"),
        ({"layers": with_layer(memory_bytes=None)}, "layers", "layers[2].memory_bytes"),
        ({"layers": with_layer(forward_s="x")}, "layers", "layers[2].forward_s"),
        ({"gradients": "device"}, "gradients", "Must be host: the memory of layers was measured for that"),
        ({"model": "gpt-3-6.7b"}, "layers", "Choose Measured layers as the model, or leave this empty"),
        ({"layers": "{" + " " * MOST_LAYERS_BYTES + TEXT[1:]}, "layers", "at most 36,864"),
        ({"stages": 11}, "stages", "there are 10"),
    ],
)
def test_what_cannot_be_stands_at_its_field(
    viewer: Client, changes: dict[str, Any], field: str, message: str
) -> None:
    page = viewer.get("/swap/", asked(**changes))
    assert page.status_code == 422
    errors = page.context["form"].errors
    assert set(errors) == {field}
    assert message in " ".join(errors[field])


def test_a_file_replaces_the_text() -> None:
    form = SwapForm(asked(layers="no profile"), {"layers_file": SimpleUploadedFile("l.json", TEXT.encode())})
    assert form.is_valid(), form.errors
    assert form.document["layers"] == json.loads(TEXT)["layers"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{" + b" " * MOST_LAYERS_BYTES, "at most 36,864"), (b"\xff", "must be UTF-8 text"), (b"{}", "l.json")],
)
def test_a_wrong_file_is_refused_at_its_field(content: bytes, message: str) -> None:
    form = SwapForm(asked(layers=""), {"layers_file": SimpleUploadedFile("l.json", content)})
    assert set(form.errors) == {"layers_file"}
    assert message in " ".join(form.errors["layers_file"])


def test_a_launch_begins_with_the_plan_and_asks_for_a_shape(world: World) -> None:
    three_nodes(world)
    layers = [  # ten times as long: an emulated GPU takes 5 ms at least
        layer | {name: 10 * layer[name] for name in ("forward_s", "backward_s")}
        for layer in json.loads(TEXT)["layers"]
    ]
    question = asked(layers=json.dumps({"layers": layers}))
    page = world.client("operator").get("/swap/", question)
    assert "Launch…" in page.content.decode()
    launch = world.client("operator").get("/runs/swap/", question)
    assert launch.status_code == 200
    assert "enter one for this model" in launch.content.decode()
    forward_ms = 1e3 * sum(layer["forward_s"] for layer in layers)
    assert launch.context["form"].initial["forward_ms"] == pytest.approx(forward_ms)
