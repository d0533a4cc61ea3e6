"""Who gets what at each address: one line of ACCESS per URL name, one of SOCKETS per WebSocket.

`test_access.py` walks the URL resolver: an address without a line fails, and a line without an address too.

To add one: `"app:name": Access(get=TEAM, args=run),`. `get` and `post` say what each of PERSONS gets (None,
the default: no such method); `args` makes the address's arguments out of the world (tests/site/world.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.site.computations import comparison, placement, plan_asked_for, queued
from tests.site.replays import answered
from tests.site.telemetry import measure
from tests.site.tenancies import ask, give_key, grant
from tests.site.traces import trace
from tests.site.world import World
from webapp.accounts.models import AuditEntry, Role
from webapp.accounts.services import invite
from webapp.computations.models import ComputationKind
from webapp.inventory.services import offer_join, preview_samples, record_measurement
from webapp.jobs.models import Run
from webapp.live.models import SpanBatch
from webapp.live.services import keep_range
from webapp.prefill.models import ApiKey, Tenancy

PERSONS = (
    "anonymous",
    "tenant",
    "viewer",
    "operator",
    "admin",
    "stranger",
)  # stranger: admin of another team
Outcomes = dict[str, str]
Args = dict[str, Any]


def outcomes(
    *, tenant: str, viewer: str, operator: str, admin: str, stranger: str, anonymous: str = "login"
) -> Outcomes:
    """What each gets: "ok" (dealt with: 2xx, 409, 422, a redirect elsewhere), "login", "403" or "404"."""
    return {
        "anonymous": anonymous,
        "tenant": tenant,
        "viewer": viewer,
        "operator": operator,
        "admin": admin,
        "stranger": stranger,
    }


# Open to all, logged in or not.
PUBLIC = outcomes(anonymous="ok", tenant="ok", viewer="ok", operator="ok", admin="ok", stranger="ok")
# One's own account: whoever is logged in.
ACCOUNT = outcomes(tenant="ok", viewer="ok", operator="ok", admin="ok", stranger="ok")
# Lists and forms of no team in particular, for those who read (operate, administer) in any team.
READERS = outcomes(tenant="404", viewer="ok", operator="ok", admin="ok", stranger="ok")
OPERATORS = outcomes(tenant="404", viewer="403", operator="ok", admin="ok", stranger="ok")
ADMINS = outcomes(tenant="404", viewer="403", operator="403", admin="ok", stranger="ok")
# Things of the team Research: to others they do not exist.
TEAM = outcomes(tenant="404", viewer="ok", operator="ok", admin="ok", stranger="404")
TEAM_OPERATORS = outcomes(tenant="404", viewer="403", operator="ok", admin="ok", stranger="404")
TEAM_ADMINS = outcomes(tenant="404", viewer="403", operator="403", admin="ok", stranger="404")
# People and teams: to who does not administer them they do not exist.
HIDDEN = outcomes(tenant="404", viewer="404", operator="404", admin="ok", stranger="404")
# Join commands: to who does not operate the team's nodes they do not exist.
TOKENS = outcomes(tenant="404", viewer="404", operator="ok", admin="ok", stranger="404")
# The tenant's own: it and the readers of the team see it; admins decide; only the tenant asks and has keys.
OWN = outcomes(tenant="ok", viewer="ok", operator="ok", admin="ok", stranger="404")
OWN_ADMINS = outcomes(tenant="403", viewer="403", operator="403", admin="ok", stranger="404")
TENANT = outcomes(tenant="ok", viewer="403", operator="403", admin="403", stranger="404")
KEYS = outcomes(tenant="ok", viewer="404", operator="404", admin="ok", stranger="404")
ASKERS = outcomes(tenant="ok", viewer="403", operator="ok", admin="ok", stranger="ok")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who gets what at one address; None: the address knows no such method (405)."""

    get: Outcomes | None = None
    post: Outcomes | None = None
    args: Callable[[World], Args] = lambda world: {}
    data: Args = field(default_factory=dict)  # of the POST


def dc(world: World) -> Args:
    return {"pk": world.dcs[0].pk}


def compared(world: World) -> Args:
    return {"pk": comparison(world).pk}


def papers_asked_for(world: World) -> Args:
    return {"pk": queued(world, {"experiments": ["atom-table2"]}, ComputationKind.PAPERS).pk}


def traced(world: World) -> Args:
    return {"pk": trace(world).pk}


def replayed_requests(world: World) -> Args:
    return {"pk": answered(world).pk}


def compared_policy(world: World) -> Args:
    return {**compared(world), "policy": "atlas"}


def compared_file(world: World) -> Args:
    return {**compared_policy(world), "form": "schedule"}


def placed(world: World) -> Args:
    return {"pk": placement(world).pk}


def computed(world: World) -> Args:
    return {"pk": plan_asked_for(world).pk}


def node(world: World) -> Args:
    return {"pk": world.nodes[0].pk}


def join_token(world: World) -> Args:
    offer_join(world.users["admin"], world.nodes[0])
    return {"pk": world.nodes[0].join_tokens.get().pk}


def link(world: World) -> Args:
    return {"pk": world.link.pk}


def previewed(world: World) -> Args:
    """What the operator has asked for."""
    return {"pk": preview_samples(world.users["operator"], world.nodes[0], {}, reads="Text.", dc="east").pk}


def pool(world: World) -> Args:
    return {"pk": world.dcs[0].pools.get().pk}


def measurement(world: World) -> Args:
    row = record_measurement(
        world.link, latency_ms=11.0, bandwidth_gbps=None, connections=None, source="probe", actor=None
    )
    return {"pk": world.link.pk, "measurement": row.pk}


def plan(world: World) -> Args:
    return {"pk": world.plan.pk}


def run(world: World) -> Args:
    return {"pk": world.launch().pk}


def person(world: World) -> Args:
    return {"pk": world.users["viewer"].pk}


def member(world: World) -> Args:
    return {"pk": world.users["viewer"].memberships.get().pk}


def team(world: World) -> Args:
    return {"pk": world.team.pk}


def invitation(world: World) -> Args:
    new, _ = invite(world.users["admin"], world.team, email="new@example.org", role=Role.VIEWER)
    return {"pk": new.pk}


def invitation_token(world: World) -> Args:
    _, token = invite(world.users["admin"], world.team, email="newer@example.org", role=Role.VIEWER)
    return {"token": token}


def audit_row(world: World) -> Args:
    return {"pk": AuditEntry.objects.filter(team=world.team).latest("pk").pk}


def asked(world: World) -> Args:
    """A request of the tenant that waits."""
    return {"pk": (Tenancy.objects.order_by("pk").first() or ask(world)).pk}


def granted(world: World) -> Args:
    return {"pk": (Tenancy.objects.in_force().order_by("pk").first() or grant(world)).pk}


def api_key(world: World) -> Args:
    return {"pk": (ApiKey.objects.live().order_by("pk").first() or give_key(world)[0]).pk}


def measured(world: World) -> Args:
    """A run of which spans are kept."""
    trained_run = world.launch()
    if not SpanBatch.objects.filter(run=trained_run).exists():  # who trains is not told that it ended
        measure(world, trained_run, iterations=2)
    return {"pk": trained_run.pk}


def kept(world: World) -> Args:
    """A kept range of a run; keeping it twice makes one."""
    pk = measured(world)["pk"]
    span_range = keep_range(world.users["admin"], Run.objects.get(pk=pk), 0, 1)
    return {"pk": pk, "kept": span_range.pk}


def put_away(address: str) -> dict[str, Access]:
    """The addresses that archive, restore and delete; whose things they take, test_archive.py says."""
    changes = {f"{address}-{verb}": Access(post=OPERATORS) for verb in ("archive", "restore")}
    return {**changes, f"{address}-delete": Access(get=OPERATORS, post=OPERATORS)}


ACCESS: dict[str, Access] = {
    # the site itself, and accounts
    "security-txt": Access(get=dict.fromkeys(PERSONS, "404")),  # open to all; no test names a contact
    "healthz": Access(get=PUBLIC),
    "readyz": Access(
        get=dict.fromkeys(PERSONS, "503")
    ),  # open to all; nothing ingests while tests of pages run
    "health": Access(get=dict.fromkeys(PERSONS, "503")),  # the same
    "login": Access(get=PUBLIC, post=PUBLIC),
    "logout": Access(post=ACCOUNT),
    "overview": Access(
        get=READERS | {"tenant": "ok"}, post=READERS | {"tenant": "ok"}
    ),  # a tenant goes on to the account
    "search": Access(get=ACCOUNT),  # each finds what they may see
    "accounts:me": Access(get=ACCOUNT, post=ACCOUNT),
    "accounts:me-edit": Access(get=ACCOUNT, post=ACCOUNT),
    "accounts:me-password": Access(get=ACCOUNT, post=ACCOUNT),
    "accounts:me-end-sessions": Access(post=ACCOUNT),
    "accounts:person-list": Access(get=ADMINS, post=ADMINS),
    "accounts:person-detail": Access(get=HIDDEN, post=HIDDEN, args=person),
    "accounts:person-deactivate": Access(get=HIDDEN, post=HIDDEN, args=person),
    "accounts:person-activate": Access(post=HIDDEN, args=person),
    "accounts:person-unlock": Access(post=HIDDEN, args=person),
    "accounts:person-password": Access(get=HIDDEN, post=HIDDEN, args=person),
    "accounts:member-role": Access(post=HIDDEN, args=member, data={"role": "admin"}),
    "accounts:member-remove": Access(get=HIDDEN, post=HIDDEN, args=member),
    "accounts:team-list": Access(get=ADMINS, post=ADMINS),
    "accounts:team-create": Access(get=ADMINS, post=ADMINS, data={"name": "New"}),
    "accounts:team-edit": Access(get=HIDDEN, post=HIDDEN, args=team, data={"name": "New"}),
    "accounts:invitation-list": Access(get=ADMINS, post=ADMINS),
    "accounts:invitation-create": Access(get=ADMINS, post=ADMINS),
    "accounts:invitation-revoke": Access(get=HIDDEN, post=HIDDEN, args=invitation),
    "accounts:invitation-accept": Access(get=PUBLIC, post=PUBLIC, args=invitation_token),
    "accounts:password-forgotten": Access(get=PUBLIC, post=PUBLIC),
    "accounts:password-sent": Access(get=PUBLIC),
    "accounts:password-set": Access(
        get=PUBLIC, post=PUBLIC, args=lambda world: {"uidb64": "MQ", "token": "x-y"}
    ),
    "accounts:password-done": Access(get=PUBLIC),
    "accounts:audit-list": Access(get=ADMINS, post=ADMINS),
    "accounts:audit-detail": Access(get=TEAM_ADMINS, post=TEAM_ADMINS, args=audit_row),
    "accounts:audit-export": Access(get=ADMINS, post=ADMINS, args=lambda world: {"kind": "csv"}),
    # inventory
    "inventory:datacenter-list": Access(get=READERS, post=READERS),
    "inventory:datacenter-create": Access(get=OPERATORS, post=OPERATORS),
    "inventory:datacenter-detail": Access(get=TEAM, post=TEAM, args=dc),
    "inventory:datacenter-edit": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=dc),
    "inventory:datacenter-delete": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=dc),
    "inventory:node-list": Access(get=READERS, post=READERS),
    "inventory:node-create": Access(get=OPERATORS, post=OPERATORS),
    "inventory:node-detail": Access(get=TEAM, post=TEAM, args=node),
    "inventory:node-edit": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=node),
    "inventory:node-delete": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=node),
    "inventory:node-reach": Access(get=READERS),
    "inventory:node-join-command": Access(get=TEAM, post=TEAM_ADMINS, args=node),  # of one that has joined
    "inventory:join-list": Access(get=OPERATORS, post=OPERATORS),
    "inventory:join-revoke": Access(get=TOKENS, post=TOKENS, args=join_token),
    "inventory:node-waiting": Access(get=TEAM, args=node),
    "inventory:node-enrol": Access(post=TEAM_ADMINS, args=node),
    "inventory:node-revoke": Access(post=TEAM_ADMINS, args=node),
    "inventory:node-drain": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=node),
    "inventory:node-resume": Access(post=TEAM_OPERATORS, args=node),
    "inventory:node-probe": Access(post=TEAM_OPERATORS, args=node),
    "inventory:datacenter-drain": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=dc),
    "inventory:datacenter-resume": Access(post=TEAM_OPERATORS, args=dc),
    "inventory:datacenter-probe": Access(post=TEAM_OPERATORS, args=dc),
    "inventory:link-probe": Access(post=TEAM_OPERATORS, args=link),
    "inventory:link-measure": Access(post=TEAM_OPERATORS, args=link),
    "inventory:link-trial": Access(get=TEAM, args=link),
    "inventory:node-join": Access(post=PUBLIC),  # the token is the right; without one 422
    "inventory:link-list": Access(get=READERS, post=READERS),
    "inventory:pool-create": Access(
        get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=lambda w: {"dc": w.dcs[0].pk}
    ),
    "inventory:pool-edit": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=pool),
    "inventory:pool-delete": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=pool),
    "inventory:map": Access(get=READERS),
    "inventory:gputype-list": Access(get=READERS),
    "inventory:gputype-detail": Access(get=READERS, args=lambda w: {"name": "h100"}),
    "inventory:region-list": Access(get=READERS),
    "inventory:link-matrix": Access(get=READERS),
    "inventory:link-suggestion": Access(get=READERS),
    "inventory:measurement-use": Access(post=TEAM_OPERATORS, args=measurement),
    "inventory:link-create": Access(get=OPERATORS, post=OPERATORS),
    "inventory:link-detail": Access(get=TEAM, post=TEAM, args=link),
    "inventory:link-edit": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=link),
    "inventory:link-delete": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=link),
    # planning
    "planning:plan-list": Access(get=READERS, post=READERS),
    **put_away("planning:plan"),
    "planning:plan-describe": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=plan),
    "planning:plan-create": Access(get=OPERATORS, post=OPERATORS),
    "planning:plan-model": Access(post=OPERATORS, data={"model": "tiny"}),
    "planning:plan-detail": Access(get=TEAM, post=TEAM, args=plan),
    "planning:plan-computing": Access(get=TEAM, post=TEAM, args=computed),
    "planning:plan-stop": Access(post=TEAM_OPERATORS, args=computed),
    "planning:plan-compare": Access(get=READERS, post=READERS),
    "planning:plan-table": Access(get=TEAM, post=TEAM, args=lambda w: {**plan(w), "table": "options"}),
    "planning:plan-refine": Access(post=TEAM_OPERATORS, args=plan),
    "planning:plan-refine-stop": Access(post=TEAM_OPERATORS, args=plan),
    "planning:plan-cross-dc": Access(get=TEAM, post=TEAM, args=plan),
    "planning:plan-cross-dc-compare": Access(post=TEAM_OPERATORS, args=plan),
    "planning:plan-cross-dc-stop": Access(post=TEAM_OPERATORS, args=plan),
    "planning:plan-place": Access(post=TEAM_OPERATORS, args=plan, data={"option": 0}),
    "planning:plan-placing": Access(get=TEAM, post=TEAM, args=plan),
    "planning:plan-refining": Access(get=TEAM, post=TEAM, args=plan),
    "planning:plan-save": Access(post=TEAM_OPERATORS, args=plan, data={"name": "x", "gpus-0": "12"}),
    "planning:plan-rename": Access(post=TEAM_OPERATORS, args=plan, data={"name": "other"}),
    "planning:plan-clone": Access(post=TEAM_OPERATORS, args=plan),
    "planning:plan-document": Access(get=TEAM, post=TEAM, args=plan),
    "design:network": Access(get=READERS, post=READERS),
    "design:swap": Access(get=READERS, post=READERS),
    "design:papers": Access(get=READERS),
    "design:paper": Access(get=READERS, args=lambda w: {"name": "atom"}),
    "design:papers-computing": Access(get=READERS),
    "design:papers-run": Access(post=OPERATORS, data={"what": "nothing"}),
    "design:papers-cancel": Access(post=TEAM_OPERATORS, args=papers_asked_for),
    "traces:trace-list": Access(get=READERS, post=READERS),
    "traces:trace-create": Access(get=OPERATORS, post=OPERATORS),
    "traces:trace-detail": Access(get=TEAM, args=traced),
    "traces:trace-ask": Access(post=TEAM_OPERATORS, args=traced, data={"equal_workers": "on"}),
    "traces:trace-analysis": Access(get=TEAM, args=traced),
    "traces:trace-timeline": Access(get=TEAM, args=traced),
    "traces:trace-table": Access(get=TEAM, args=lambda w: {**traced(w), "table": "workers"}),
    "traces:trace-cancel": Access(post=TEAM_OPERATORS, args=traced),
    **put_away("traces:trace"),
    "schedules:schedule-list": Access(get=READERS, post=READERS),
    "schedules:schedule-create": Access(get=OPERATORS, post=OPERATORS),
    "schedules:schedule-detail": Access(get=TEAM, post=TEAM, args=compared),
    "schedules:schedule-document": Access(get=TEAM, post=TEAM, args=compared),
    "schedules:schedule-table": Access(get=TEAM, post=TEAM, args=compared),
    "schedules:schedule-timeline": Access(get=TEAM, post=TEAM, args=compared_policy),
    "schedules:schedule-download": Access(get=TEAM, post=TEAM, args=compared_file),
    "schedules:schedule-cancel": Access(post=TEAM_OPERATORS, args=compared),
    **put_away("schedules:schedule"),
    "placement:placement-list": Access(get=READERS, post=READERS),
    "placement:placement-create": Access(get=OPERATORS, post=OPERATORS),
    "placement:placement-detail": Access(get=TEAM, post=TEAM, args=placed),
    "placement:placement-document": Access(get=TEAM, post=TEAM, args=placed),
    "placement:placement-table": Access(get=TEAM, post=TEAM, args=lambda w: {**placed(w), "table": "groups"}),
    "placement:placement-launch": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=placed),
    "placement:placement-cancel": Access(post=TEAM_OPERATORS, args=placed),
    **put_away("placement:placement"),
    "planning:plan-launch-form": Access(
        get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=lambda world: {"pk": world.plan.pk, "option": 0}
    ),
    "planning:plan-launch": Access(post=TEAM_OPERATORS, args=plan, data={"option": 0}),
    "planning:plan-launch-replicas": Access(post=TEAM_OPERATORS, args=plan),
    # prefill: a tenant's own, which its team reads and its admins decide on
    "prefill:home": Access(get=ACCOUNT, post=ACCOUNT),
    "prefill:live": Access(get=OPERATORS, post=OPERATORS),
    "prefill:replay-list": Access(get=READERS, post=READERS),
    "prefill:replay-create": Access(get=OPERATORS, post=OPERATORS),
    "prefill:replay-detail": Access(get=TEAM, args=replayed_requests),
    "prefill:replay-document": Access(get=TEAM, args=replayed_requests),
    "prefill:replay-table": Access(get=TEAM, args=lambda w: {**replayed_requests(w), "table": "sold"}),
    "prefill:replay-cancel": Access(post=TEAM_OPERATORS, args=replayed_requests),
    **put_away("prefill:replay"),
    "prefill:tenancy-list": Access(get=ACCOUNT, post=ACCOUNT),
    "prefill:tenancy-request": Access(get=ASKERS, post=ASKERS),
    "prefill:tenancy-detail": Access(get=OWN, post=OWN, args=asked),
    "prefill:tenancy-review": Access(get=OWN_ADMINS, post=OWN_ADMINS, args=asked),
    "prefill:tenancy-suspend": Access(get=OWN_ADMINS, post=OWN_ADMINS, args=granted, data={"reason": "x"}),
    "prefill:tenancy-resume": Access(post=OWN_ADMINS, args=granted),
    "prefill:tenancy-renew": Access(get=OWN, post=TENANT, args=granted, data={"days": 3}),
    "prefill:tenancy-withdraw": Access(post=TENANT, args=asked),
    "prefill:key-list": Access(get=ACCOUNT, post=ACCOUNT),
    "prefill:key-create": Access(get=ACCOUNT, post=ACCOUNT),
    "prefill:key-rotate": Access(get=KEYS, post=KEYS | {"admin": "403"}, args=api_key, data={"overlap_h": 1}),
    "prefill:key-revoke": Access(post=KEYS, args=api_key),
    "prefill:usage-list": Access(get=ACCOUNT, post=ACCOUNT),
    "prefill:usage-statement": Access(get=ACCOUNT, post=ACCOUNT),
    "prefill:usage-export": Access(get=ACCOUNT, post=ACCOUNT, args=lambda world: {"kind": "csv"}),
    # the API: a key opens it; a session, anybody's, does not
    "v1:models": Access(get=dict.fromkeys(PERSONS, "401")),
    "v1:model": Access(get=dict.fromkeys(PERSONS, "401"), args=lambda w: {"name": "llama-3-8b@east"}),
    "v1:quote": Access(post=dict.fromkeys(PERSONS, "401")),
    "v1:root": Access(get=dict.fromkeys(PERSONS, "404"), post=dict.fromkeys(PERSONS, "404")),
    "v1:unknown": Access(
        get=dict.fromkeys(PERSONS, "404"),
        post=dict.fromkeys(PERSONS, "404"),
        args=lambda w: {"rest": "embeddings"},
    ),
    "v1:completions": Access(post=dict.fromkeys(PERSONS, "401")),
    "v1:chat-completions": Access(post=dict.fromkeys(PERSONS, "401")),
    "v1:batches": Access(post=dict.fromkeys(PERSONS, "401")),
    # jobs
    "jobs:run-list": Access(get=READERS, post=READERS),
    "jobs:swap-launch": Access(get=OPERATORS, post=OPERATORS),
    **put_away("jobs:run"),
    "jobs:run-describe": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=run),
    "jobs:run-compare": Access(get=READERS, post=READERS),
    "jobs:run-queue": Access(get=READERS, post=READERS),
    "jobs:run-priority": Access(post=OPERATORS),
    "jobs:run-move": Access(post=OPERATORS),
    "jobs:run-detail": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-live": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-history": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-spans": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-gpus": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-trace": Access(get=TEAM, post=TEAM, args=measured),
    "jobs:run-ranges": Access(get=TEAM, post=TEAM_OPERATORS, args=measured, data={"from": 0, "to": 1}),
    "jobs:run-range-delete": Access(post=TEAM_OPERATORS, args=kept),
    "jobs:run-document": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-metrics": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-metrics-download": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-checkpoints-json": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-checkpoints": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-logs": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-logs-download": Access(get=TEAM, post=TEAM, args=run),
    "jobs:run-samples": Access(
        get=dict.fromkeys(TEAM, "404") | {"anonymous": "login", "operator": "ok"}, args=previewed
    ),
    "jobs:run-dry": Access(post=READERS | dict.fromkeys(("viewer", "operator", "admin", "stranger"), "404")),
    "jobs:run-retry": Access(post=TEAM_OPERATORS, args=run),
    "jobs:run-clone": Access(get=TEAM_OPERATORS, post=TEAM_OPERATORS, args=run),
    "jobs:run-cancel": Access(post=TEAM_OPERATORS, args=run),
}

# WebSocket address (as its pattern reads) → what each person gets ("ok": a first message; "404": closed with
# 4404), and the address out of the world.
SOCKETS: dict[str, tuple[Outcomes, Callable[[World], str]]] = {
    "ws/runs/<int:run_id>/": (TEAM | {"anonymous": "404"}, lambda world: f"ws/runs/{world.launch().pk}/"),
}
