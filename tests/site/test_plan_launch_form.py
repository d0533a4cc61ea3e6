"""The launch form of an option of a plan: what a plan does not say is asked for before its run begins."""

from typing import Any

import pytest

from engine.job.changed import fields_of
from engine.job.memory import most_layers, stage_memory
from tests.site.test_clone_prefill import MODEL
from tests.site.world import World
from webapp.accounts.models import AuditEntry
from webapp.jobs.models import Run
from webapp.planning.document import site_job


def launch(world: World, *, who: str = "operator", option: int = 0, **changes: Any) -> Any:
    """The form as it is shown, with `changes`, sent."""
    client, url = world.client(who), f"/plans/{world.plan.pk}/launch/{option}/"
    form = client.get(url).context["form"]
    shown = {field.name: field.value() for field in form if field.value() is not None}
    return client.post(url, {**shown, **changes})


def test_what_a_plan_does_not_say_is_asked_for(world: World) -> None:
    answer = launch(
        world,
        name="kept",
        steps=77,
        checkpoint_dir="/saved",
        checkpoint_every=5,
        recoveries=4,
        recovery_wait_s=30,
        recovery_layers_per_gpu=5,
        adapt_percent=20,
        adapt_policy="auto",
        adapt_layout="on",
    )
    run = Run.objects.get(job__name="kept")
    assert answer.url == f"/runs/{run.pk}/"
    plain = world.launch()
    differing = {"optimizer.steps", "persistence.checkpoint", "failures.recovery", "failures.adapt"}
    values, before = fields_of(run.document), fields_of(plain.job.document)
    assert {n: v for n, v in values.items() if n not in differing} == {
        n: v for n, v in before.items() if n not in differing
    }
    assert run.document["optimizer"]["steps"] == 77
    assert run.document["persistence"]["checkpoint"] == {"dir": "/saved", "every": 5}
    assert run.document["failures"]["recovery"] == {"attempts": 4, "wait_s": 30, "layers_per_gpu": 5}
    assert run.document["failures"]["adapt"] == {"deviation": 0.2, "policy": "auto", "layout": True}
    assert run.job.plan == world.plan
    entry = AuditEntry.objects.get(verb="create", object_type="job", object_id=str(run.job_id))
    assert entry.after["optimizer.steps"] == 77
    assert entry.after["failures.recovery"]["attempts"] == 4


def test_another_layout_is_refused_at_its_field_without_what_it_needs(world: World) -> None:
    answer = launch(world, name="never", adapt_percent=20, adapt_layout="on", recoveries="")
    (message,) = answer.context["form"].errors["adapt_layout"]
    assert message.startswith("Needs failures.recovery")
    assert not Run.objects.filter(job__name="never").exists()
    second = launch(world, name="kept", adapt_percent="", adapt_layout="on")
    assert second.status_code == 302
    assert "adapt" not in Run.objects.get(job__name="kept").document.get("failures", {}), "no threshold"


def test_the_layers_that_fit_into_a_gpu_are_offered_and_more_are_refused(world: World) -> None:
    form = world.client("operator").get(f"/plans/{world.plan.pk}/launch/0/").context["form"]
    layers = form.old["model"]["layers"]
    assert form["recovery_layers_per_gpu"].value() == layers, "its GPUs hold the whole small model"
    assert f"{layers} fit." in form["recovery_layers_per_gpu"].help_text
    answer = launch(world, name="never", recoveries=2, recovery_layers_per_gpu=layers + 1)
    assert answer.status_code == 422
    message = str(answer.context["form"].errors["recovery_layers_per_gpu"])
    assert f"At most {layers} fit into its memory" in message
    launch(world, name="plain", recovery_layers_per_gpu=layers)
    assert "failures" not in Run.objects.get(job__name="plain").document, "none is asked for"


def test_fewer_layers_fit_into_less_memory_and_never_more_than_the_memory(world: World) -> None:
    job = site_job(world.launch().job.document)
    sizes = [stage.total_bytes for stage in stage_memory(job)]
    held = [most_layers(job, size) for size in range(0, 32 * max(sizes), max(sizes) // 4)]
    assert held == sorted(held)
    assert held[0] == 0
    assert held[-1] == job.model.layers
    assert most_layers(job, max(sizes)) <= max(map(len, job.layers_of_stage)), "beside both its ends"


def test_a_run_that_sells_is_launched_from_its_plan(world: World) -> None:
    launch(world, name="sells", **MODEL)
    assert Run.objects.get(job__name="sells").document["prefill"]["name"] == "llama-tiny"


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"checkpoint_dir": "/saved"}, "checkpoint_every", "checkpoint interval in iterations"),
        ({"steps": 0}, "steps", "greater than or equal to 1"),
        ({"microbatches": 1_000_000}, "microbatches", "less than or equal to"),
    ],
)
def test_what_cannot_be_launches_nothing(
    world: World, changes: dict[str, Any], field: str, message: str
) -> None:
    answer = launch(world, name="never", **changes)
    assert answer.status_code == 422
    assert message in str(answer.context["form"].errors.get(field))
    assert not Run.objects.filter(job__name="never").exists()


def test_check_launches_nothing_and_sent_twice_is_one_run(world: World) -> None:
    assert launch(world, name="never", check="1").status_code == 200
    assert not Run.objects.filter(job__name="never").exists()
    key = "the-same-key"
    first, second = (launch(world, name="once", idempotency_key=key).url for _ in range(2))
    assert first == second


def test_an_option_that_is_not_there(world: World) -> None:
    assert world.client("operator").get(f"/plans/{world.plan.pk}/launch/999/").status_code == 404
    page = world.client("operator").get(f"/plans/{world.plan.pk}/").content.decode()
    assert f"/plans/{world.plan.pk}/launch/0/" in page
