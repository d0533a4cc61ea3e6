"""How pages are found, and what can be begun: the tasks that the documentation describes, by their words."""

from collections.abc import Collection, Iterator
from typing import Any

from django.urls import reverse

from webapp.accounts.context import entries_of
from webapp.accounts.models import ADMINS, OPERATORS, READERS, Membership, Role
from webapp.common.search import Listed
from webapp.prefill.models import ASKERS

Task = tuple[str, str, str, Collection[str]]  # label, address, other words for it, who may
TASKS: tuple[Task, ...] = (
    ("Add a data centre", "inventory:datacenter-create", "new site location", OPERATORS),
    ("Add a data centre from the catalogue", "inventory:region-list", "new cloud region", OPERATORS),
    ("Add a node", "inventory:node-create", "new machine, join an agent", OPERATORS),
    ("Add a link", "inventory:link-create", "new WAN connection", OPERATORS),
    ("Plan a training job", "planning:plan-create", "new plan, model, what-if", OPERATORS),
    ("Launch a run", "planning:plan-list", "train, start a job: open a plan and launch an option", OPERATORS),
    ("Place devices", "placement:placement-create", "new placement, GPUs to stages", OPERATORS),
    ("Compare schedules", "schedules:schedule-create", "new comparison, policies, bubbles", OPERATORS),
    ("Compare runs", "jobs:run-compare", "two runs, losses, documents, difference", READERS),
    ("Change the order of the queue", "jobs:run-queue", "priority, position, runs that wait", OPERATORS),
    ("Ask for a tenancy", "prefill:tenancy-request", "request prefill capacity", ASKERS),
    ("Invite a person", "accounts:invitation-create", "new user, add people", ADMINS),
    ("Create a team", "accounts:team-create", "new team", ADMINS),
    ("Change my password", "accounts:me-password", "account, log in", tuple(Role)),
)


def _roles(user: Any) -> set[str]:
    if user.is_superuser:
        return {str(role) for role in Role}
    return set(Membership.objects.filter(user=user).values_list("role", flat=True))


def _pages(user: Any) -> Iterator[tuple[str, str, str]]:
    for entry in entries_of([Role.ADMIN] if user.is_superuser else sorted(_roles(user))):
        yield entry.label, reverse(entry.address), ""


def _tasks(user: Any) -> Iterator[tuple[str, str, str]]:
    roles = _roles(user)
    for label, address, words, who in TASKS:
        if roles & {str(role) for role in who}:
            yield label, reverse(address), words


KINDS = (
    Listed(order=10, name="page", label="Pages", things=_pages),
    Listed(order=15, name="help", label="How to", things=_tasks),
)
