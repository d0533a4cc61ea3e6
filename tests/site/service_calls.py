"""One call of every public function of every `webapp/<app>/services` module or package: "<app>.<function>".

`test_audit_services.py` finds the functions by inspection and fails for one that stands in none of these:

- CALLS: a call that changes state. It must leave an AuditEntry (webapp.accounts.services.record).
- NOTES: a call that only notes what machines report, or keeps house, with the reason why no row is written.
  One that writes a row after all belongs into CALLS.
- READS: functions that change no row, with what they do. They are not called; their source must not write.

To add one: `"jobs.retry_run": lambda w: partial(jobs.retry_run, operator(w), w.launch()),`. `w` is the world
of tests/site/world.py, new for each call. The test calls what is returned and counts the rows that it writes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib.sessions.backends.db import SessionStore
from django.utils import timezone

from engine import __version__
from engine.job.changed import changed
from engine.job.events.event import from_dict
from tests.events import event
from tests.site.computations import (
    PLACED_TRAINING,
    QUESTION,
    claimed,
    joined_placement,
    plan_asked_for,
    queued,
)
from tests.site.coordinators import NOW, coordinator_event, prefill_event
from tests.site.replays import question, started, trace_file
from tests.site.swap_runs import swap_job
from tests.site.telemetry import adapted, layout_changed, measure
from tests.site.tenancies import MODEL, ask, end, give_key, grant, limits
from tests.site.traces import file_of, uploaded
from tests.site.world import World, make_dc
from webapp.accounts import services as accounts
from webapp.accounts.models import Role
from webapp.accounts.services.invitations import revoke_invitations_of
from webapp.computations import services as computations
from webapp.computations.models import Computation
from webapp.inventory import services as inventory
from webapp.inventory.models import DataCenter, GpuPool, LinkMeasurement, Node
from webapp.inventory.services.nodes import give_credentials, void_tokens
from webapp.jobs import services as jobs
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Job, MarkLevel, Priority, RankStatus, Run, Status
from webapp.jobs.services import boundary
from webapp.jobs.services.link_rates import record_link_rates
from webapp.jobs.services.predictions import predict_as_begun, record_prediction
from webapp.jobs.services.recovery import cut_run, dismiss_ranks
from webapp.jobs.services.searched import ask_for_schedule
from webapp.jobs.services.status import add_mark_once
from webapp.live import services as live
from webapp.live.services.coordinators import record_coordinator, record_prefill
from webapp.live.services.gpus import record_gpus
from webapp.live.services.logs import record_loss, store
from webapp.placement.placed import placed_job
from webapp.planning import services as planning
from webapp.planning.models import Plan
from webapp.prefill import services as prefill
from webapp.prefill.models import Tenancy
from webapp.traces import services as traces

Prepare = Callable[[World], Callable[[], Any]]


def operator(w: World) -> Any:
    return w.users["operator"]


def admin(w: World) -> Any:
    return w.users["admin"]


def invited(w: World) -> Any:
    """An invitation and its token."""
    return accounts.invite(admin(w), w.team, email="new@example.org", role=Role.OPERATOR)


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


def clone(w: World, run: Run) -> Callable[[], Any]:
    document = changed(run.job.document, {"optimizer.steps": 7})
    return partial(jobs.clone_run, operator(w), run, name="other", document=document)


def over(w: World) -> Run:
    return jobs.fail_run(w.launch(), "Broken.")


def archived_plans(w: World) -> Any:
    accounts.archive(operator(w), Plan.objects.all())
    return Plan.objects.all()


def rank_event(w: World) -> Callable[[], Any]:
    run = placed(w)
    return partial(jobs.record_rank_event, run, event("rank", state="starting"))


def reported(record: Callable[..., Any], of: Callable[[Run], Any], run: Run) -> Callable[[], Any]:
    return partial(record, run, "east-1", NOW, from_dict(of(run)))


def tenant(w: World) -> Any:
    return w.users["tenant"]


def asking(w: World) -> Callable[[], Any]:
    new = Tenancy(
        team=w.team, name="New", model=MODEL, asked_tokens_per_min=9_000, asked_ttft_ms=400, asked_days=30
    )
    return partial(prefill.request_tenancy, tenant(w), new, w.dcs[:1])


def ended(w: World) -> Callable[[], Any]:
    end(grant(w))
    return partial(prefill.end_tenancies)


def suspended(w: World) -> Tenancy:
    return prefill.suspend_tenancy(admin(w), grant(w), "Bursts.")


def opening(w: World) -> Callable[[], Any]:
    key, _ = give_key(w)
    return partial(prefill.open_request, key, request_id="r", dc=w.dcs[0], at=timezone.now())


def used(w: World) -> Callable[[], Any]:
    return partial(
        prefill.record_usage,
        grant(w),
        request_id="r",
        dc=w.dcs[0],
        at=timezone.now(),
        outcome="refused",
        reason="no_bubble",
        prompt_tokens=1,
    )


def moved_dc(w: World) -> Any:
    w.dcs[0].place = "Elsewhere"
    return w.dcs[0]


def measured_link(w: World) -> LinkMeasurement:
    """A measurement that is not in use."""
    return inventory.record_measurement(
        w.link, latency_ms=11.0, bandwidth_gbps=0.9, connections=4, source="probe", actor=None
    )


def waiting_work(w: World) -> Callable[[], Any]:
    placed(w)
    return partial(jobs.forget_stopped_work, "Down.")


def release(w: World) -> Callable[[], Any]:
    run = placed(w)
    return partial(jobs.release_rank, run, run.ranks.all()[0])


def bring_back(w: World) -> Callable[[], Any]:
    run = placed(w)
    Job.objects.filter(pk=run.job_id).update(document=changed(run.job.document, {"failures.recovery": {}}))
    Run.objects.filter(pk=run.pk).update(status=Status.RUNNING)
    run = Run.objects.get(pk=run.pk)
    return partial(jobs.bring_back, run, run.ranks.all()[0], "its agent ended.")


def lost_first(w: World) -> Callable[[], Any]:
    run = over(w)
    Run.objects.filter(pk=run.pk).update(moves=True)
    return partial(jobs.settle_move, run)


def join_token(w: World) -> Any:
    inventory.offer_join(admin(w), w.nodes[0])
    return w.nodes[0].join_tokens.get()


def joining(w: World) -> Callable[[], Any]:
    token = inventory.offer_join(admin(w), w.nodes[0])
    body = {"token": token, "version": __version__, "host": "10.0.0.1"}
    return partial(inventory.join_node, body, address="10.0.0.1")


def resuming(w: World) -> Callable[[], Any]:
    inventory.drain(operator(w), w.nodes[0])
    return partial(inventory.resume, operator(w), w.nodes[0])


def probing(w: World) -> Callable[[], Any]:
    w.hear()
    nodes = list(Node.objects.select_related("dc").order_by("pk")[:2])
    return partial(inventory.probe_nodes, operator(w), nodes[0], [(nodes[0], nodes[1])])


def measuring(w: World) -> Callable[[], Any]:
    w.hear()
    return partial(inventory.measure_link, operator(w), w.link)


def keeping_refined(w: World) -> Callable[[], Any]:
    computation = planning.ask_to_refine(operator(w), w.plan, w.plan.request)
    return partial(planning.keep_refined, computation, w.plan.result)


def keeping_plan(w: World) -> Callable[[], Any]:
    computation = computations.claim(plan_asked_for(w).pk)
    assert computation is not None
    return partial(planning.keep_plan, computation, w.plan.result, 1.0)


def launching_placed(w: World) -> Callable[[], Any]:
    placement = joined_placement(w)
    placed = placed_job(placement, PLACED_TRAINING)
    return partial(jobs.launch_placement, operator(w), placement, name="placed", placed=placed)


def loses_a_worker(run: Run) -> Callable[[], None]:
    return partial(jobs.lose_worker, run, run.ranks.get(rank=3), "its node does not know it")


def ends_without_workers(w: World) -> Callable[[], object]:
    """A run all of whose ranks have left."""
    run = placed(w)
    run.ranks.update(state=RankStatus.LEFT)
    return partial(jobs.end_without_workers, run)


def measured_run(w: World) -> Run:
    """A run of which the spans of two iterations are there."""
    run = w.launch()
    measure(w, run, iterations=2)
    return run


def training(w: World) -> Run:
    run = placed(w)
    for rank in range(12):
        jobs.record_rank_event(run, event("rank", rank=rank, state="running", exit_code=None))
    run.refresh_from_db()
    return run


def moving(w: World) -> Callable[[], Any]:
    run = training(w)
    run.again = True
    return partial(boundary.go_on_elsewhere, run)


CALLS: dict[str, Prepare] = {
    # accounts
    "accounts.record": lambda w: partial(accounts.record, operator(w), "test", w.team, team=w.team),
    "accounts.ensure_team": lambda w: partial(accounts.ensure_team, "New"),
    "accounts.ensure_user": lambda w: partial(accounts.ensure_user, "new", "a long enough password"),
    "accounts.set_role": lambda w: partial(
        accounts.set_role, w.users["viewer"], w.team, Role.OPERATOR, actor=admin(w)
    ),
    "accounts.create_team": lambda w: partial(accounts.create_team, admin(w), "New"),
    "accounts.rename_team": lambda w: partial(accounts.rename_team, admin(w), w.team, "Newer"),
    "accounts.remove_member": lambda w: partial(
        accounts.remove_member, admin(w), w.users["viewer"].memberships.get()
    ),
    "accounts.change_profile": lambda w: partial(accounts.change_profile, operator(w), first_name="Ada"),
    "accounts.deactivate": lambda w: partial(accounts.deactivate, admin(w), w.users["viewer"]),
    "accounts.activate": lambda w: partial(
        accounts.activate, admin(w), accounts.deactivate(None, operator(w))
    ),
    "accounts.unlock": lambda w: partial(accounts.unlock, admin(w), w.users["viewer"]),
    "accounts.change_password": lambda w: partial(accounts.change_password, operator(w), "a long passphrase"),
    "accounts.reset_password": lambda w: partial(accounts.reset_password, operator(w), "a long passphrase"),
    "accounts.make_reset_link": lambda w: partial(accounts.make_reset_link, admin(w), w.users["viewer"]),
    "accounts.note_reset_mail": lambda w: partial(accounts.note_reset_mail, operator(w)),
    "accounts.invite": lambda w: partial(
        accounts.invite, admin(w), w.team, email="new@example.org", role=Role.VIEWER
    ),
    "accounts.revoke_invitations_of": lambda w: partial(
        revoke_invitations_of, admin(w), invited(w)[0].invited_by
    ),
    "accounts.revoke_invitation": lambda w: partial(accounts.revoke_invitation, admin(w), invited(w)[0]),
    "accounts.accept_invitation": lambda w: partial(
        accounts.accept_invitation, invited(w)[1], w.users["stranger"]
    ),
    "accounts.join_with_new_account": lambda w: partial(
        accounts.join_with_new_account, invited(w)[1], username="new", password="a long passphrase"
    ),
    "accounts.note_login": lambda w: partial(
        accounts.note_login, operator(w), SessionStore(), address="192.0.2.1", browser="Lynx"
    ),
    "accounts.note_logout": lambda w: partial(accounts.note_logout, operator(w), "key"),
    "accounts.note_failed_login": lambda w: partial(
        accounts.note_failed_login, "operator", address="192.0.2.1", locked=False
    ),
    "accounts.end_other_sessions": lambda w: partial(accounts.end_other_sessions, operator(w), "key"),
    "accounts.archive": lambda w: partial(accounts.archive, operator(w), Plan.objects.all()),
    "accounts.restore": lambda w: partial(accounts.restore, operator(w), archived_plans(w)),
    "jobs.move_in_queue": lambda w: partial(
        jobs.move_in_queue, operator(w), [w.launch(), w.launch()][1], up=True
    ),
    "jobs.set_priority": lambda w: partial(jobs.set_priority, operator(w), w.launch(), Priority.HIGH),
    "accounts.describe": lambda w: partial(accounts.describe, operator(w), w.plan, labels="x", note="y"),
    # inventory
    "inventory.save": lambda w: partial(inventory.save, operator(w), moved_dc(w)),
    "inventory.delete": lambda w: partial(inventory.delete, operator(w), make_dc(w.team, "spare")),
    "inventory.create_datacenter": lambda w: partial(
        inventory.create_datacenter,
        operator(w),
        DataCenter(team=w.team, name="fresh"),
        GpuPool(gpu_type="h100"),
    ),
    "inventory.use_measurement": lambda w: partial(inventory.use_measurement, operator(w), measured_link(w)),
    "inventory.enrol_node": lambda w: partial(inventory.enrol_node, admin(w), w.nodes[0]),
    "inventory.revoke_node": lambda w: partial(inventory.revoke_node, admin(w), w.nodes[0]),
    "inventory.offer_join": lambda w: partial(inventory.offer_join, admin(w), w.nodes[0]),
    "inventory.join_node": joining,
    "inventory.revoke_join": lambda w: partial(inventory.revoke_join, operator(w), join_token(w)),
    "inventory.give_credentials": lambda w: partial(give_credentials, admin(w), w.nodes[0]),
    "inventory.drain": lambda w: partial(inventory.drain, operator(w), w.nodes[0]),
    "inventory.resume": resuming,
    "inventory.probe_nodes": probing,
    "inventory.measure_link": measuring,
    "inventory.preview_samples": lambda w: partial(
        inventory.preview_samples, operator(w), w.nodes[0], {}, reads="Text.", dc="east"
    ),
    # planning
    "planning.start_of_plan": lambda w: partial(
        planning.start_of_plan, operator(w), w.plan, kind="placement", name="new", request=QUESTION
    ),
    "planning.ask_to_compare": lambda w: partial(
        planning.ask_to_compare, operator(w), w.plan, w.plan.request
    ),
    "planning.ask_to_refine": lambda w: partial(planning.ask_to_refine, operator(w), w.plan, w.plan.request),
    "planning.keep_refined": keeping_refined,
    "planning.rename_plan": lambda w: partial(planning.rename_plan, operator(w), w.plan, "other"),
    "planning.delete_plans": lambda w: partial(planning.delete_plans, operator(w), Plan.objects.all()),
    "planning.clone_plan": lambda w: partial(planning.clone_plan, operator(w), w.plan),
    "computations.start": lambda w: partial(
        computations.start, operator(w), team=w.team, kind="schedules", name="new", request=QUESTION
    ),
    "computations.ask_to_cancel": lambda w: partial(computations.ask_to_cancel, operator(w), queued(w)),
    "computations.remove": lambda w: partial(computations.remove, operator(w), queued(w)),
    "computations.delete_computations": lambda w: partial(
        computations.delete_computations, operator(w), Computation.objects.filter(pk=queued(w).pk)
    ),
    "computations.finish": lambda w: partial(computations.finish, claimed(w), {"results": []}),
    "computations.give_up": lambda w: partial(computations.give_up, claimed(w), "no such policy"),
    "planning.ask_for_plan": lambda w: partial(
        planning.ask_for_plan, operator(w), team=w.team, name="another", request=w.plan.request, training=None
    ),
    "planning.keep_plan": keeping_plan,
    "planning.create_plan": lambda w: partial(
        planning.create_plan,
        operator(w),
        team=w.team,
        name="another",
        request=w.plan.request,
        training=w.plan.training,
    ),
    # traces
    "traces.upload_trace": lambda w: partial(
        traces.upload_trace, operator(w), team=w.team, name="new", files=[file_of()]
    ),
    "traces.ask_what_if": lambda w: partial(
        traces.ask_what_if, operator(w), uploaded(w).trace, ["equal-workers"]
    ),
    "traces.delete_traces": lambda w: partial(
        traces.delete_traces, operator(w), Computation.objects.filter(pk=uploaded(w).pk)
    ),
    # prefill
    "prefill.request_tenancy": asking,
    "prefill.withdraw_tenancy": lambda w: partial(prefill.withdraw_tenancy, tenant(w), ask(w)),
    "prefill.ask_renewal": lambda w: partial(prefill.ask_renewal, tenant(w), grant(w), 30),
    "prefill.approve_tenancy": lambda w: partial(
        prefill.approve_tenancy, admin(w), ask(w), limits(), w.dcs[:1], oversell=True
    ),
    "prefill.refuse_tenancy": lambda w: partial(prefill.refuse_tenancy, admin(w), ask(w), "No supply."),
    "prefill.suspend_tenancy": lambda w: partial(prefill.suspend_tenancy, admin(w), grant(w), "Bursts."),
    "prefill.resume_tenancy": lambda w: partial(
        prefill.resume_tenancy, admin(w), suspended(w), oversell=True
    ),
    "prefill.end_tenancies": ended,
    "prefill.start_replay": lambda w: partial(
        prefill.start_replay,
        operator(w),
        team=w.team,
        name="new",
        request=question(w),
        files=[file_of("trace.csv")],
    ),
    "prefill.make_key": lambda w: partial(prefill.make_key, tenant(w), grant(w), "new"),
    "prefill.rotate_key": lambda w: partial(prefill.rotate_key, tenant(w), give_key(w)[0], 24),
    "prefill.revoke_key": lambda w: partial(prefill.revoke_key, tenant(w), give_key(w)[0]),
    # jobs
    "jobs.launch_plan": lambda w: partial(jobs.launch_plan, operator(w), w.plan, w.plan.result["best"]),
    "jobs.launch_replicas": lambda w: partial(
        jobs.launch_replicas, operator(w), w.plan, {}, w.launch().job.document
    ),
    "jobs.launch_placement": launching_placed,
    "jobs.launch_swap": lambda w: partial(
        jobs.launch_swap, operator(w), w.team, name="swapped", document=swap_job(w)
    ),
    "jobs.launch_run": lambda w: partial(jobs.launch_run, operator(w), w.launch().job),
    "jobs.delete_runs": lambda w: partial(
        jobs.delete_runs, operator(w), Run.objects.select_related("job").filter(pk=over(w).pk)
    ),
    "jobs.end_without_workers": ends_without_workers,
    "jobs.retry_run": lambda w: partial(jobs.retry_run, operator(w), over(w)),
    "jobs.clone_run": lambda w: clone(w, w.launch()),
    "jobs.ask_for_schedule": lambda w: partial(ask_for_schedule, operator(w), w.launch()),
    "jobs.record_schedule": lambda w: (
        lambda run: partial(jobs.record_schedule, run, run.job.document, run.predicted)
    )(w.launch()),
    "jobs.finish_stopped": lambda w: partial(jobs.finish_stopped, stopping(w)),
    "jobs.set_status": lambda w: partial(jobs.set_status, w.launch(), Status.STARTING, ""),
    "jobs.cancel_run": lambda w: partial(jobs.cancel_run, operator(w), w.launch()),
    "jobs.finish": lambda w: partial(boundary.finish, training(w)),
    "jobs.go_on_elsewhere": moving,
    "jobs.stop_at_boundary": lambda w: partial(
        jobs.stop_at_boundary, operator(w), training(w), why="east-1 is draining", again=True
    ),
    "jobs.fail_run": lambda w: partial(jobs.fail_run, w.launch(), "Broken."),
    "jobs.fail_or_move": lambda w: partial(jobs.fail_or_move, w.launch(), "Broken."),
    "jobs.move_run": lambda w: partial(jobs.move_run, over(w), "east-1 did not return."),
    "jobs.forget_stopped_work": waiting_work,
    # live
    "live.keep_range": lambda w: partial(live.keep_range, operator(w), measured_run(w), 0, 1),
    "live.delete_range": lambda w: partial(
        live.delete_range, operator(w), live.keep_range(operator(w), measured_run(w), 0, 1)
    ),
}

RECOVERY = event("recovery", left=None, layout=None)


def reports_another_plan(w: World) -> Callable[[], Any]:
    run = w.launch()
    return partial(jobs.record_adapted, run, from_dict(adapted(run)))


def reports_another_layout(w: World) -> Callable[[], Any]:
    run = w.launch()
    return partial(jobs.record_layout_changed, run, from_dict(layout_changed(run)))


def has_another_layout(w: World) -> Callable[[], Any]:
    run = w.launch()
    event: Any = from_dict(layout_changed(run))
    return partial(cut_run, run, event.iteration, event.layout, event.times)


REPORTED = "notes what a node or rank reports; nobody decided anything"
HOUSE = "keeps house; the setting says how much is kept"

NOTES: dict[str, tuple[Prepare, str]] = {
    # traces
    "traces.keep_files": (
        lambda w: partial(traces.keep_files, started(w), [trace_file()]),
        "files of a computation, whose start is audited in the same transaction",
    ),
    "traces.note_figures": (
        lambda w: partial(traces.note_figures, uploaded(w), {"format": "spans", "workers": 2, "steps": 1}),
        "what the search worker read in the files; that it has finished leaves a row",
    ),
    # prefill
    "prefill.open_request": (opening, "an open request, which is taken away when its event is written"),
    "prefill.drop_request": (lambda w: partial(prefill.drop_request, "r"), "an open request goes"),
    "prefill.record_usage": (used, "an event of its own, which nobody can change"),
    "prefill.note_key_use": (
        lambda w: partial(prefill.note_key_use, give_key(w)[0]),
        "when a key was used last; its use is an event",
    ),
    "prefill.tell": (
        lambda w: partial(prefill.tell, ask(w), "x"),
        "a notice of what another service has done",
    ),
    "prefill.mail_notices": (lambda w: partial(prefill.mail_notices), "delivers notices"),
    "prefill.warn_of_ends": (lambda w: partial(prefill.warn_of_ends), "a notice; nothing changes"),
    # planning
    "computations.claim": (
        lambda w: partial(computations.claim, queued(w).pk),
        "the search worker begins what a person started, which is in the audit",
    ),
    "computations.note_progress": (
        lambda w: partial(computations.note_progress, claimed(w), {"done": 1, "of": 2}, None),
        "how far a worker is",
    ),
    "computations.put_back": (
        lambda w: partial(computations.put_back, claimed(w)),
        "a worker that shuts down leaves the question to the next",
    ),
    "computations.requeue_lost": (lambda w: partial(computations.requeue_lost), "keeps house: lost messages"),
    "computations.site_identity": (
        lambda w: partial(computations.site_identity),
        "an id that the site makes for itself, once",
    ),
    "computations.say_alive": (lambda w: partial(computations.say_alive, claimed(w)), "a worker's heartbeat"),
    # accounts
    "inventory.void_tokens": (
        lambda w: partial(void_tokens, join_token(w).node),
        "a step of other services, which write the row",
    ),
    "accounts.drop_sessions": (
        lambda w: partial(accounts.drop_sessions, operator(w)),
        "a step of other services, which write the row",
    ),
    "accounts.forget_expired": (
        lambda w: partial(accounts.forget_expired),
        "keeps house: sessions that have run out",
    ),
    "accounts.move_session": (
        lambda w: partial(accounts.move_session, operator(w), "old", "new"),
        "the change of the password is in the audit; its session goes on under another key",
    ),
    # inventory
    "inventory.record_measurement": (
        lambda w: partial(
            inventory.record_measurement,
            w.link,
            latency_ms=11.0,
            bandwidth_gbps=None,
            connections=None,
            source="probe",
            actor=None,
        ),
        "a row of the link's history; the values in use stay as they are",
    ),
    "inventory.record_heartbeat": (
        lambda w: partial(
            inventory.record_heartbeat,
            w.nodes[0].name,
            timezone.now(),
            event("heartbeat"),
        ),
        REPORTED,
    ),
    "inventory.record_probe": (
        lambda w: partial(inventory.record_probe, w.nodes[0].name, event("probe")),
        REPORTED,
    ),
    "inventory.record_rates": (
        lambda w: partial(inventory.record_rates, w.nodes[0].name, event("rates")),
        REPORTED,
    ),
    "inventory.record_samples": (
        lambda w: partial(inventory.record_samples, w.nodes[0].name, event("samples")),
        REPORTED,
    ),
    # jobs
    "jobs.record_checkpoint": (
        lambda w: partial(jobs.record_checkpoint, w.launch(), event("checkpoint")),
        REPORTED,
    ),
    "jobs.record_adapted": (reports_another_plan, REPORTED),
    "jobs.record_layout_changed": (reports_another_layout, REPORTED),
    "jobs.cut_run": (has_another_layout, REPORTED),
    "jobs.dismiss_ranks": (lambda w: partial(dismiss_ranks, w.launch(), [3]), REPORTED),
    "jobs.record_prediction": (
        lambda w: partial(
            record_prediction, w.launch(), 3, {"iteration_ms": 1.0, "utilization": 0.5, "spans": []}
        ),
        REPORTED,
    ),
    "jobs.predict_as_begun": (lambda w: partial(predict_as_begun, w.launch(), 3), REPORTED),
    "jobs.forget_old_predictions": (lambda w: partial(jobs.forget_old_predictions, 200, {}), HOUSE),
    "jobs.record_recovery": (lambda w: partial(jobs.record_recovery, w.launch(), RECOVERY), REPORTED),
    "jobs.bring_back": (
        bring_back,
        "delivers the launch, which is in the audit, again; the run's page says it",
    ),
    "jobs.record_workers": (
        lambda w: partial(
            jobs.record_workers,
            placed(w),
            from_dict(event("workers", run="1", generation=1, step=3, workers=[0, 1], lost=[2])),
        ),
        REPORTED,
    ),
    "jobs.lose_worker": (lambda w: loses_a_worker(placed(w)), REPORTED),
    "jobs.leave_reserve": (
        lambda w: partial(jobs.leave_reserve, run := placed(w), run.ranks.all()[11], "its node is silent."),
        REPORTED,
    ),
    "jobs.settle_move": (lost_first, "part of a move, whose launch is in the audit"),
    "jobs.record_boundary": (lambda w: partial(jobs.record_boundary, w.launch(), 3), REPORTED),
    "jobs.wait_for": (lambda w: partial(jobs.wait_for, w.launch(), "GPUs"), "the run's page says it"),
    "jobs.wait_in_queue": (
        lambda w: partial(jobs.wait_in_queue, [jobs.Waiting(run=w.launch(), what="GPUs")]),
        "the run's page says it",
    ),
    "jobs.record_rank_event": (rank_event, REPORTED),
    "jobs.record_dispatch": (
        lambda w: partial(jobs.record_dispatch, placed(w), w.nodes[0]),
        "the launch is in the audit; this is its delivery",
    ),
    "jobs.release_rank": (release, REPORTED),
    "jobs.record_ended_iteration": (
        lambda w: partial(jobs.record_ended_iteration, w.launch(), 3),
        REPORTED,
    ),
    "jobs.record_progress": (lambda w: partial(jobs.record_progress, w.launch(), iteration=3), REPORTED),
    "jobs.record_result": (lambda w: partial(jobs.record_result, w.launch(), {"loss": 1.0}), REPORTED),
    "jobs.record_link_rates": (lambda w: partial(record_link_rates, w.launch(), {"wan": []}), REPORTED),
    "jobs.record_last_line": (lambda w: partial(jobs.record_last_line, placed(w), 0, "hello"), REPORTED),
    "jobs.next_live_seq": (
        lambda w: partial(jobs.next_live_seq, w.launch().pk),
        "numbers a message to browsers",
    ),
    "jobs.add_mark": (
        lambda w: partial(jobs.add_mark, w.launch(), MarkLevel.INFO, "x"),
        "a mark is itself a record",
    ),
    "jobs.add_mark_once": (
        lambda w: partial(add_mark_once, w.launch(), MarkLevel.INFO, "x", 0.0),
        "a mark is itself a record",
    ),
    # live
    "live.take_in": (lambda w: partial(live.take_in, [], {w.launch().pk}), REPORTED),
    "live.record_loss": (lambda w: partial(record_loss, w.nodes[0].name, 3), REPORTED),
    "live.store": (lambda w: partial(store, {}), REPORTED),
    "live.record_coordinator": (
        lambda w: reported(record_coordinator, coordinator_event, placed(w)),
        REPORTED,
    ),
    "live.record_prefill": (
        lambda w: reported(record_prefill, prefill_event, placed(w)),
        REPORTED,
    ),
    "live.record_refusals": (
        lambda w: partial(live.record_refusals, {w.nodes[0].name: (3, "why")}),
        REPORTED,
    ),
    "live.record_gpus": (
        lambda w: partial(record_gpus, w.nodes[0].name, timezone.now(), event("gpus")),
        REPORTED,
    ),
    "live.forget_old_spans": (lambda w: partial(live.forget_old_spans, 10), HOUSE),
    "live.compact_iterations": (lambda w: partial(live.compact_iterations, 10), HOUSE),
    "live.forget_old_lines": (lambda w: partial(live.forget_old_lines, 10), HOUSE),
    "live.add_up_prefill": (lambda w: partial(live.add_up_prefill, 3_600), HOUSE),
}

READS: dict[str, str] = {
    "accounts.locked": "locks what is to be archived or deleted",
    "live.add_refusal": "counts, in memory, what a node said that cannot be",
    "live.require_possible": "refuses what cannot be true of a run",
    "jobs.goes_on_from": "why runs cannot be deleted",
    "computations.claimed": "locks a computation that a worker still holds",
    "computations.somebody_waits": "whether anything urgent is queued",
    "planning.wants_second_look": "whether an answer may be bettered",
    "prefill.may_decide": "whether somebody may decide",
    "prefill.require_decider": "refuses who may not decide",
    "prefill.require_tenant": "refuses who is not the tenant",
    "accounts.close_sockets": "has ingest tell open sockets what another service has decided",
    "accounts.token_hash": "a hash",
    "accounts.open_invitation": "the invitation of a token",
    "accounts.keep_an_admin": "refuses what would leave a team without an admin",
    "inventory.team_of": "whose a thing is",
    "inventory.lock_node": "locks a node",
    "inventory.checked_hardware": "checks what an agent says",
    "inventory.blocked_by": "why a thing cannot be deleted",
    "inventory.set_broker_user": "tells the broker what the database says",
    "inventory.drop_broker_user": "tells the broker what the database says",
    "inventory.sync_acl": "tells the broker what the database says",
    "inventory.bound_reports": "what ingest has measured: nobody decides",
    "inventory.cut_crowds": "tells the broker, about what it says itself",
    "inventory.node_broker_url": "a URL",
    "live.line_of": "builds a row",
    "live.merged": "adds counts up",
    "live.thinned": "leaves lines of a flood out",
    "jobs.is_cause": "judges a rank",
    "jobs.rank_failure": "a sentence",
    "jobs.place": "words for a rank",
    "jobs.lock": "a locked row",
}
