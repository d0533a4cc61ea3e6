"""Placement, network and swap take a config.json as the plan's form does; a wrong one stands at its field."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from tests.site.test_placement import filled
from tests.site.world import World
from webapp.design import network_page, swap_page
from webapp.design.pages import first_values
from webapp.placement.forms import document_of

pytestmark = pytest.mark.django_db
CONFIG = (Path(__file__).parent.parent / "configs" / "llama-3-8b.json").read_text()
CHOSEN = {"model": "config", "config": CONFIG, "model_seq": "2048"}
PAGES = {"network": network_page.page, "swap": swap_page.page}
WRONG = {
    "": "choose a file, or paste its text",
    "[1]": "must be an object",
    "- a\n- b": "must be an object",
    '{"model_type": "lama"}': "did you mean",
    CONFIG.replace("4096", "-4096"): "hidden_size",
    CONFIG.replace('"num_attention_heads": 32', '"num_attention_heads": 33'): "num_key_value_heads",
    CONFIG.replace('"num_hidden_layers": 32', '"num_hidden_layers": 1000000000'): "num_hidden_layers",
}


def traffic(world: World, **changes: Any) -> dict[str, Any]:
    form = filled(world, dp_bytes=None, pp_bytes=None, batch=12, **changes)
    assert form.is_valid(), form.errors
    document = document_of(form.question)
    return {name: document[name] for name in ("dp_bytes", "pp_bytes")}


@pytest.mark.parametrize("name", PAGES)
def test_a_design_of_a_config_is_that_of_the_preset(world: World, name: str) -> None:
    viewer, values = world.client("viewer"), first_values(PAGES[name].form)
    of_config = viewer.get(f"/{name}/", {**values, **CHOSEN, "model_seq": ""})
    of_preset = viewer.get(f"/{name}/", {**values, "model": "llama-3-8b"})
    assert of_config.status_code == of_preset.status_code == 200
    assert of_config.context["answer"] == of_preset.context["answer"]
    document = json.loads(viewer.get(f"/{name}/", {**values, **CHOSEN, "as": "document"}).content)
    assert document["model"] == {**json.loads(CONFIG), "seq": 2048}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:12])
@pytest.mark.parametrize("name", PAGES)
def test_a_wrong_config_of_a_design_stands_at_its_field(world: World, name: str, text: str) -> None:
    request = {**first_values(PAGES[name].form), **CHOSEN, "config": text}
    page = world.client("viewer").get(f"/{name}/", request)
    assert page.status_code == 422
    assert set(page.context["form"].errors) == {"config"}
    assert WRONG[text] in str(page.context["form"].errors["config"])


def test_the_traffic_of_a_placement_is_that_of_its_config(world: World) -> None:
    assert traffic(world, **{**CHOSEN, "model_seq": None}) == traffic(world, model="llama-3-8b")
    shorter = traffic(world, **CHOSEN)
    assert shorter["pp_bytes"] == 12 / 3 * 2048 * 4096 * 2
    file = {"config_file": SimpleUploadedFile("config.json", CONFIG.encode())}
    form = filled(world, dp_bytes=None, pp_bytes=None, batch=12, model="config", config="no config")
    form.files.update(file)
    assert form.is_valid(), form.errors


def test_a_placement_is_filled_in_again_with_its_config(world: World) -> None:
    form = filled(world, dp_bytes=None, pp_bytes=None, batch=12, **CHOSEN)
    assert form.is_valid(), form.errors
    json.dumps(form.question)
    entered = form.question["asked"]
    assert (entered["model"], entered["model_seq"]) == ("config", 2048)
    again = filled(world, **{**entered, "datacenters": [dc.pk for dc in world.dcs]})
    assert again.is_valid(), again.errors
    assert json.loads(entered["config"]) == json.loads(CONFIG)


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:12])
def test_a_wrong_config_of_a_placement_stands_at_its_field(world: World, text: str) -> None:
    form = filled(world, dp_bytes=None, pp_bytes=None, **{**CHOSEN, "config": text})
    assert set(form.errors) == {"config"}
    assert WRONG[text] in str(form.errors["config"])


def test_a_file_of_5_mb_is_no_config(world: World) -> None:
    big = SimpleUploadedFile("config.json", b" " * 5_000_000)
    form = filled(world, dp_bytes=None, pp_bytes=None, model="config")
    form.files["config_file"] = big
    assert "at most 131,072" in str(form.errors["config_file"])


def test_a_config_that_is_not_asked_for_is_not_read(world: World) -> None:
    assert filled(world, source="case", case="spot", **{**CHOSEN, "config": "{"}).is_valid()


def test_pages_have_the_fields(world: World) -> None:
    operator = world.client("operator")
    for address in ("/network/", "/swap/", reverse("placement:placement-create")):
        page = operator.get(address).content.decode()
        assert page.count('name="config"') == page.count('name="config_file"') == 1, address
