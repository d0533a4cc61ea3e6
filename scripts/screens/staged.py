"""The fourth site: a team of three data centres with a run in every state, and nodes and people in theirs.

`stage` fills the database; `paths` says where each thing stands: "run-failed" → "/runs/7/".
"""

from datetime import timedelta
from typing import Any

from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone

from engine import __version__
from scripts.screens import staged_prefill, staged_runs
from tests.site import many
from tests.site.addresses import world_of_database
from tests.site.tenancies import ask, give_key, grant, second_tenant, use
from tests.site.world import World, make_dc, make_node, make_user
from webapp.accounts.models import Invitation, Role, Team, User
from webapp.accounts.services import deactivate, invite, make_reset_link
from webapp.computations.computing import work_at
from webapp.computations.models import Computation, ComputationKind
from webapp.computations.services import claim, give_up, note_progress
from webapp.inventory.models import DataCenter, GpuPool, JoinToken, Node, NodeProbe
from webapp.inventory.services import drain, offer_join
from webapp.jobs.models import Run
from webapp.placement.forms import PlacementForm
from webapp.placement.options import form_values
from webapp.planning import compose
from webapp.planning.models import Plan
from webapp.planning.services import ask_for_plan, create_plan, start_of_plan
from webapp.prefill.models import Tenancy
from webapp.prefill.services import ask_renewal, refuse_tenancy

MEASURED = 40  # of the link
GPUS = 32  # of a node: several runs train on each


def stage(world: World) -> None:
    """Everything there is to look at."""
    many.datacenters(world, range(0))
    many.measurements(world, range(MEASURED))
    Node.objects.update(gpus=GPUS, seen_gpus=GPUS, version=__version__, enrolled_at=timezone.now())
    GpuPool.objects.update(price_per_gpu_hour="2.10")
    world.hear()
    many.beat_on(world)
    people(world)
    nodes(world)
    probes(world)
    staged_runs.runs(world)
    layouts(world)
    computing(world)
    placing(world)
    tenancies(world)
    staged_prefill.selling(world)


def tenancies(world: World) -> None:
    """One that is used, one by another tenant, one that waits, one that was refused, and a renewal."""
    admin, rival = world.users["admin"], second_tenant(world)
    used = grant(world, ask(world))
    grant(world, ask(world, rival, name="Halden Labs", typical_prompt=2_048), tokens_per_min=400_000)
    give_key(world, used)
    for i in range(40):
        missed = {"outcome": "refused", "reason": "no_bubble", "ttft_ms": None}
        at = timezone.now() - timedelta(minutes=7 * i)
        use(used, i, at=at, prompt_tokens=300 + 97 * i, **(missed if i % 9 == 4 else {}))
    refuse_tenancy(admin, ask(world, name="Night batch"), "No run trains in mid before December.")
    ask(world, name="Fathom Images", asked_tokens_per_min=900_000, purpose="search answers, EU and US")
    ask_renewal(rival, grant(world, ask(world, rival, name="Halden Eval")), 30)


def layouts(world: World) -> None:
    """A plan that was to find out in how many stages, how many GPUs each, and how large the microbatches."""
    values = {
        "source": "model",
        "model": "gpt-a",
        "mfu": 0.4,
        "datacenters": world.dcs,
        "partitions": (2, 4),
        "tp": (1, 2),
        "model_micro_batch": (1, 2),
        "microbatches": 8,
        "method": "search",
        "policy": "1f1b",
        "order": "gpus",
        "objective": "cost_per_token",
        "bill": "used",
    }
    request = compose.request_of(values)
    create_plan(world.users["operator"], team=world.team, name="layouts", request=request, training=None)


def computing(world: World) -> None:
    """A plan that the search worker is at, and one that it could not make."""
    ask = {"team": world.team, "request": world.plan.request, "training": world.plan.training}
    for name in ("computing", "refused"):
        one = claim(ask_for_plan(world.users["operator"], name=name, **ask).pk)
        assert one is not None
        if name == "computing":
            note_progress(one, {"done": 0, "of": 1, "cells": 1_204, "cells_of": 4_913}, None)
        else:
            give_up(one, "job.microbatches 5000000: at most 2000000 ops in a cell")
    Computation.objects.filter(name="computing").update(heard_at=timezone.now() + timedelta(days=1))


def placing(world: World) -> None:
    """A placement of the best option of the world's plan."""
    plan, actor = world.plan, world.users["operator"]
    values = form_values(plan, plan.result["best"], plan.best or {})
    form = PlacementForm({**values, "evaluations": 200, "baselines": "on"}, user=actor)
    assert form.is_valid(), form.errors
    computation = start_of_plan(actor, plan, kind="placement", name="of-plan", request=form.question)
    work_at(computation.pk)


def people(world: World) -> None:
    """One who has left, one who is locked out, and an invitation."""
    make_user("left", world.team, Role.VIEWER)
    deactivate(world.users["admin"], User.objects.get(username="left"))
    make_user("locked", world.team, Role.OPERATOR)
    invite(world.users["admin"], world.team, email="new@research.example", role=Role.OPERATOR)


def nodes(world: World) -> None:
    """One in each state in which a node gets no work."""
    north = make_dc(world.team, "north", place="Luleå", country="SE", time_zone="Europe/Stockholm")
    hear: dict[str, Any] = {
        "enrolled_at": timezone.now(),
        "acl_sha256": "0" * 64,
        "version": __version__,
        "gpus": 8,
        "seen_gpus": 8,
    }
    make_node(north, "never-joined", gpus=8)
    make_node(north, "silent", **hear, last_seen=timezone.now() - timedelta(days=2))
    make_node(north, "old-version", **hear | {"version": "0.0.9"}, last_seen=timezone.now())
    away = make_node(north, "draining", **hear, last_seen=timezone.now())
    drain(world.users["operator"], away)
    slow = make_node(north, "wrong-clock", **hear, last_seen=timezone.now())
    Node.objects.filter(pk=slow.pk).update(clock_offset_ms=41.7, clock_rtt_ms=0.8)
    gone = make_dc(world.team, "leaving")
    drain(world.users["operator"], gone)


def probes(world: World) -> None:
    """Between the world's nodes: one way not reached, one not answered."""
    east, mid, west = world.nodes
    answers: list[tuple[Node, Node, dict[str, Any]]] = [
        (east, mid, {"ok": True, "rtt_ms": 20.41, "offset_ms": 0.12}),
        (mid, east, {"ok": True, "rtt_ms": 20.38, "offset_ms": -0.11}),
        (east, west, {"ok": False, "error": "connect to 10.2.0.4:29400: connection refused"}),
        (west, east, {}),
    ]
    for source, target, answer in answers:
        asked_at = timezone.now() - timedelta(minutes=3)
        NodeProbe.objects.create(
            probe="p1",
            source=source,
            target=target,
            asked_at=asked_at,
            asked_by=world.users["operator"],
            at=timezone.now() if answer else None,
            **answer,
        )


def paths() -> dict[str, str]:
    """Name → address of all that `stage` made; secrets of links are made anew."""
    addresses = {f"run-{run.job.name}": run_path("detail", run) for run in Run.objects.select_related("job")}
    for part in ("logs", "metrics", "clone"):
        long = Run.objects.get(job__name=staged_runs.LONG)
        addresses[f"run-{part}"] = run_path(part, long)
    pages = (
        ("node", "inventory:node-detail", Node.objects.all()),
        ("dc", "inventory:datacenter-detail", DataCenter.objects.all()),
        ("plan", "planning:plan-detail", Plan.objects.all()),
        ("plan", "planning:plan-computing", Computation.objects.of(ComputationKind.PLAN)),
        ("placement", "placement:placement-detail", Computation.objects.of(ComputationKind.PLACEMENT)),
        ("user", "accounts:person-detail", User.objects.all()),
        ("tenancy", "prefill:tenancy-detail", Tenancy.objects.all()),
    )
    for kind, address, rows in pages:
        addresses |= {f"{kind}-{row}": reverse(address, args=[row.pk]) for row in rows}
    return addresses | _secrets() | _forms()


def run_path(part: str, run: Run) -> str:
    return reverse(f"jobs:run-{part}", args=[run.pk])


def _secrets() -> dict[str, str]:
    """Addresses that hold a one-time token."""
    admin, team = User.objects.get(username="admin"), Team.objects.get(name="Research")
    uid, token = make_reset_link(admin, User.objects.get(username="operator"))
    _, welcome = invite(admin, team, email="newer@research.example", role=Role.OPERATOR)
    JoinToken.objects.all().delete()
    offer_join(admin, Node.objects.get(name="never-joined"))
    assert Invitation.objects.exists()
    return {
        "html-500": render_to_string("500.html"),
        "html-400": render_to_string("400.html"),
        "password-set": reverse("accounts:password-set", args=[uid, token]),
        "invitation": reverse("accounts:invitation-accept", args=[welcome]),
        "invitation-over": reverse("accounts:invitation-accept", args=["gone"]),
    }


def _forms() -> dict[str, str]:
    """Addresses of forms about a thing."""
    dc, link = DataCenter.objects.get(name="east"), world_of_database().link
    pool = dc.pools.get()
    return {
        "pool-create": reverse("inventory:pool-create", args=[dc.pk]),
        "pool-edit": reverse("inventory:pool-edit", args=[pool.pk]),
        "dc-edit": reverse("inventory:datacenter-edit", args=[dc.pk]),
        "dc-drain": reverse("inventory:datacenter-drain", args=[dc.pk]),
        "dc-delete": reverse("inventory:datacenter-delete", args=[dc.pk]),
        "link": reverse("inventory:link-detail", args=[link.pk]),
        "link-edit": reverse("inventory:link-edit", args=[link.pk]),
    }
