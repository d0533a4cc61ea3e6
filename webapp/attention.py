"""What needs somebody's attention: a full disk, silent nodes, runs that wait in vain, failures."""

from collections.abc import Iterable, Iterator
from typing import Any

from django.conf import settings
from django.db.models import Count, Window
from django.urls import reverse
from django.utils import timezone

from webapp import health
from webapp.accounts.models import Team
from webapp.common.markup import ago
from webapp.inventory.models import Node, NodeState
from webapp.inventory.selectors.use import Use
from webapp.jobs.models import Run, Status
from webapp.prefill.models import Tenancy

MOST_SHOWN = 6
MOST_NODES = 3  # named one by one; more are one entry with a link to their list
Entry = dict[str, Any]  # {level, title, text, url, action}


def attention(user: Any, whole: Use, runs: Iterable[Run]) -> dict[str, Any]:
    """`attention`, the first MOST_SHOWN entries, and `attention_count`, of all.

    Parameters
    ----------
    whole : the use of all data centres that `user` sees.
    runs : those that the page shows, with what ended last among them.
    """
    waiting = _waiting(user)
    tenancies = _asked(user)
    unseen = sum(rows[0].of - len(rows) for rows in (waiting, tenancies) if rows)
    notices = [*_disk(), *_silent(user, whole), *_stuck(waiting), *_tenancies(tenancies), *_failed(runs)]
    return {"attention": notices[:MOST_SHOWN], "attention_count": len(notices) + unseen}


def _waiting(user: Any) -> list[Any]:
    """Runs that wait for what does not come by itself, the first MOST_SHOWN `of` all."""
    stuck = Run.objects.visible_to(user).open().filter(needs_action=True)
    return list(stuck.for_lists().annotate(of=Window(Count("pk"))).order_by("status_since")[:MOST_SHOWN])


def _asked(user: Any) -> list[Any]:
    """Tenancies that wait for a decision that `user` may make, the first MOST_SHOWN `of` all."""
    teams = Team.objects.administered_by(user)
    rows = Tenancy.objects.to_decide().filter(team__in=teams).exclude(tenant=user).select_related("tenant")
    return list(rows.annotate(of=Window(Count("pk"))).order_by("created_at")[:MOST_SHOWN])


def _tenancies(rows: Iterable[Tenancy]) -> Iterator[Entry]:
    for tenancy in rows:
        since = ago(tenancy.waits_since or tenancy.created_at).removesuffix(" ago")
        renewal = tenancy.renewal_days is not None
        yield {
            "level": "warn",
            "title": f"{tenancy.name} asks for {'a renewal' if renewal else 'prefill'}",
            "text": f"{(tenancy.tokens_per_min or tenancy.asked_tokens_per_min) / 1e3:,.4g}k tokens/min of "
            f"{tenancy.model}, TTFT within {tenancy.ttft_ms or tenancy.asked_ttft_ms:,} ms. "
            f"Waiting {since} for an admin.",
            "url": reverse("prefill:tenancy-review", args=[tenancy.pk]),
            "action": "Review",
        }


def _disk() -> Iterator[Entry]:
    """Said while pages can still be read: a full disk stops the servers."""
    check = health.disk()
    if not check.ok:
        yield {
            "level": "error",
            "title": f"Disk nearly full: {check.detail}",
            "text": "A full disk stops PostgreSQL and Valkey. Ranks continue to train; their reports wait "
            "until there is room.",
            "url": "",
        }


def _silent(user: Any, whole: Use) -> Iterator[Entry]:
    quiet = Node.objects.visible_to(user).in_state(NodeState.SILENT)
    rows = quiet.select_related("dc").defer("seen_ranks", "seen_hardware").order_by("name")
    nodes = list(rows[: MOST_NODES + 1])
    if len(nodes) > MOST_NODES:
        yield {
            "level": "error",
            "title": f"{whole.nodes_silent:,} nodes are silent",
            "text": f"Of {whole.nodes:,} nodes in total. They answered before.",
            "url": f"{reverse('inventory:node-list')}?state=silent",
            "action": "Open nodes",
        }
        return
    for node in nodes:
        lasts = ago(node.last_seen or timezone.now()).removesuffix(" ago")
        yield {
            "level": "error",
            "title": f"Node {node.name} silent for {lasts}",
            "text": f"{node.gpus} GPU{'' if node.gpus == 1 else 's'} in {node.dc.name}.",
            "url": reverse("inventory:node-detail", args=[node.pk]),
            "action": "Open node",
        }


def _stuck(runs: Iterable[Run]) -> Iterator[Entry]:
    """An alarm once they have waited for long."""
    for run in runs:
        minutes = (timezone.now() - run.status_since).total_seconds() / 60
        late = minutes >= settings.PENDING_ALARM_MIN
        yield {
            "level": "error" if late else "warn",
            "title": f"{run.job.name} waits{f' for {minutes:,.0f} min' if late else ''}",
            "text": f"{run.reason}.{' It needs your action.' if late else ''}",
            "url": reverse("jobs:run-detail", args=[run.pk]),
            "action": "Open run",
        }


def _failed(runs: Iterable[Run]) -> Iterator[Entry]:
    for run in runs:
        if run.status == Status.FAILED and run.finished_at and (timezone.now() - run.finished_at).days < 1:
            yield {
                "level": "error",
                "title": f"{run} failed",
                "text": run.reason,
                "url": reverse("jobs:run-detail", args=[run.pk]),
                "action": "Open run",
            }
