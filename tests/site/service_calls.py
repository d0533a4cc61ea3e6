"""One call of every public function of every `webapp/<app>/services` module or package: "<app>.<function>".

`test_audit_services.py` finds the functions by inspection and fails for one that stands in none of these:

- CALLS: a call that changes state. It must leave an AuditEntry (webapp.accounts.services.record).
- NOTES: a call that only notes what machines report, or keeps house, with the reason why no row is written.
  One that writes a row after all belongs into CALLS.
- READS: functions that change no row, with what they do. They are not called; their source must not write.

To add one: `"jobs.retry_run": lambda w: partial(jobs.retry_run, operator(w), w.launch()),`. `w` is the world of
tests/site/world.py, new for each call. The test calls what is returned, and counts only rows that this writes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.utils import timezone

from tests.site.world import World, make_dc
from webapp.accounts import services as accounts
from webapp.accounts.models import Role
from webapp.inventory import services as inventory
from webapp.inventory.models import DataCenter, GpuPool
from webapp.jobs import services as jobs
from webapp.jobs.allocate import allocate
from webapp.jobs.models import MarkLevel, Run, Status
from webapp.live import services as live
from webapp.planning import services as planning

Prepare = Callable[[World], Callable[[], Any]]


def operator(w: World) -> Any:
    return w.users["operator"]


def admin(w: World) -> Any:
    return w.users["admin"]


def placed(w: World) -> Run:
    """A run whose ranks have got their GPUs."""
    w.hear()
    run = w.launch()
    assert allocate(run)
    run.refresh_from_db()
    return run


def stopping(w: World) -> Run:
    run = placed(w)
    jobs.set_status(run, Status.STOPPING, "Stopped.")
    return run


def rank_event(w: World) -> Callable[[], Any]:
    run = placed(w)
    event = {"kind": "rank", "run": run.pk, "generation": run.generation, "rank": 0, "state": "starting"}
    return partial(jobs.record_rank_event, run, event)


def moved_dc(w: World) -> Any:
    w.dcs[0].place = "Elsewhere"
    return w.dcs[0]


def waiting_work(w: World) -> Callable[[], Any]:
    w.launch()
    return partial(jobs.forget_stopped_work, "Down.")


def release(w: World) -> Callable[[], Any]:
    run = placed(w)
    return partial(jobs.release_rank, run, run.ranks.all()[0])


CALLS: dict[str, Prepare] = {
    # accounts
    "accounts.record": lambda w: partial(accounts.record, operator(w), "test", w.team, team=w.team),
    "accounts.ensure_team": lambda w: partial(accounts.ensure_team, "New"),
    "accounts.ensure_user": lambda w: partial(accounts.ensure_user, "new", "a long enough password"),
    "accounts.set_role": lambda w: partial(
        accounts.set_role, w.users["viewer"], w.team, Role.OPERATOR, actor=admin(w)
    ),
    # inventory
    "inventory.save": lambda w: partial(inventory.save, operator(w), moved_dc(w)),
    "inventory.delete": lambda w: partial(inventory.delete, operator(w), make_dc(w.team, "spare")),
    "inventory.create_datacenter": lambda w: partial(
        inventory.create_datacenter,
        operator(w),
        DataCenter(team=w.team, name="fresh"),
        GpuPool(gpu_type="h100"),
    ),
    "inventory.enrol_node": lambda w: partial(inventory.enrol_node, operator(w), w.nodes[0]),
    "inventory.revoke_node": lambda w: partial(inventory.revoke_node, operator(w), w.nodes[0]),
    # planning
    "planning.create_plan": lambda w: partial(
        planning.create_plan,
        operator(w),
        team=w.team,
        name="another",
        request=w.plan.request,
        training=w.plan.training,
    ),
    # jobs
    "jobs.launch_plan": lambda w: partial(jobs.launch_plan, operator(w), w.plan, w.plan.result["best"]),
    "jobs.launch_run": lambda w: partial(jobs.launch_run, operator(w), w.launch().job),
    "jobs.cancel_run": lambda w: partial(jobs.cancel_run, operator(w), w.launch()),
    "jobs.fail_run": lambda w: partial(jobs.fail_run, w.launch(), "Broken."),
    "jobs.forget_stopped_work": waiting_work,
}

REPORTED = "notes what a node or rank reports; nobody decided anything"
HOUSE = "keeps house; the setting says how much is kept"

NOTES: dict[str, tuple[Prepare, str]] = {
    # inventory
    "inventory.record_heartbeat": (
        lambda w: partial(
            inventory.record_heartbeat,
            w.nodes[0].name,
            timezone.now(),
            gpus=4,
            device="cpu",
            version="1",
            ranks=[],
        ),
        REPORTED,
    ),
    # jobs
    "jobs.finish_stopped": (
        lambda w: partial(jobs.finish_stopped, stopping(w)),
        "the stop is in the audit; this is its end",
    ),
    "jobs.wait_for": (lambda w: partial(jobs.wait_for, w.launch(), "GPUs"), "the run's page says it"),
    "jobs.record_rank_event": (rank_event, REPORTED),
    "jobs.record_dispatch": (
        lambda w: partial(jobs.record_dispatch, placed(w), w.nodes[0]),
        "the launch is in the audit; this is its delivery",
    ),
    "jobs.release_rank": (release, REPORTED),
    "jobs.record_progress": (lambda w: partial(jobs.record_progress, w.launch(), iteration=3), REPORTED),
    "jobs.record_result": (lambda w: partial(jobs.record_result, w.launch(), {"loss": 1.0}), REPORTED),
    "jobs.record_last_line": (lambda w: partial(jobs.record_last_line, placed(w), 0, "hello"), REPORTED),
    "jobs.next_live_seq": (
        lambda w: partial(jobs.next_live_seq, w.launch().pk),
        "numbers a message to browsers",
    ),
    "jobs.set_status": (
        lambda w: partial(jobs.set_status, w.launch(), Status.STARTING, ""),
        "a step of other services, which write the row where somebody decided",
    ),
    "jobs.add_mark": (
        lambda w: partial(jobs.add_mark, w.launch(), MarkLevel.INFO, "x"),
        "a mark is itself a record",
    ),
    # live
    "live.take_in": (lambda w: partial(live.take_in, [], {w.launch().pk}), REPORTED),
    "live.forget_old_spans": (lambda w: partial(live.forget_old_spans, 10), HOUSE),
}

READS: dict[str, str] = {
    "inventory.team_of": "whose a thing is",
    "inventory.blocked_by": "why a thing cannot be deleted",
    "inventory.set_broker_user": "tells the broker what the database says",
    "inventory.drop_broker_user": "tells the broker what the database says",
    "inventory.sync_acl": "tells the broker what the database says",
    "inventory.node_broker_url": "a URL",
    "jobs.is_cause": "judges a rank",
    "jobs.rank_failure": "a sentence",
    "jobs.place": "words for a rank",
    "jobs.lock": "a locked row",
}
