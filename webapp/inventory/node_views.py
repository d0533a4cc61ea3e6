"""Pages of nodes, from the command with which a machine joins until they are drained and revoked."""

from typing import Any

import redis
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from engine.documents import read_document
from engine.errors import InputError
from webapp.accounts.permissions import require, require_somewhere, visible_or_404
from webapp.common import broker
from webapp.common.additions import extended
from webapp.common.lists import list_page
from webapp.common.queries import whole
from webapp.common.shown_once import page_shown_once, show_once, to_be_shown
from webapp.common.throttle import of_address
from webapp.common.work import work
from webapp.inventory import services
from webapp.inventory.models import DataCenter, JoinToken, Node, NodeState, WanLink
from webapp.inventory.node_forms import DrainForm, NodeForm
from webapp.inventory.node_tables import JoinTokenFilterSet, JoinTokenTable, NodeFilterSet, NodeTable
from webapp.inventory.pages import BROKER_AWAY, Pages
from webapp.inventory.selectors.details import last_trial
from webapp.inventory.selectors.nodes import node_page, nodes_for_lists, open_tokens, reach_matrix

JOINS_PER_MINUTE = 20  # of one address
BROKER_SILENT = ("broker", "does not answer, so no machine can join now", "try again soon")
LARGEST_JOIN = 256 * 1024  # bytes
MOST_SHOWN = 40  # nodes in the matrix

nodes = Pages(
    name="node",
    one="node",
    title="Nodes",
    form=NodeForm,
    empty="No nodes yet. Add one to a data centre, then copy the join command and run it on the machine.",
    rows=nodes_for_lists,
    whole=lambda: Node.objects.select_related("dc__team", "pool"),
    table=NodeTable,
    filter=NodeFilterSet,
    actions=(("inventory:node-reach", "Reachability"), ("inventory:join-list", "Join commands")),
    created=lambda request, node: _command(request, node),
)


def _node(request: HttpRequest, pk: int) -> Node:
    return visible_or_404(nodes.whole(), request.user, pk=pk)


def node_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One node; with its new credentials, once, where they were just made."""
    node, credentials = _node(request, pk), to_be_shown(request)
    context = extended("node", request, node_page(request.user, node) | {"credentials": credentials})
    show = render if credentials is None else page_shown_once
    return show(request, "inventory/node_detail.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def node_join_command(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a token for the node, and show the command that uses it, once."""
    node = _node(request, pk)
    if request.method == "POST":
        return _command(request, node)
    command = to_be_shown(request)
    if command is None:
        return redirect(_page_of(node))
    crumbs = [("Nodes", reverse("inventory:node-list")), (str(node), _page_of(node))]
    context = _waiting(node) | command | {"crumbs": crumbs}
    return page_shown_once(request, "inventory/node_join.html", context)


def _command(request: HttpRequest, node: Node) -> HttpResponse:
    token = services.offer_join(request.user, node)
    site = request.build_absolute_uri("/").rstrip("/")
    command = f"meridian agent join {site} --token {token} --run"
    return show_once(request, reverse("inventory:node-join-command", args=[node.pk]), {"command": command})


@require_GET
def node_waiting(request: HttpRequest, pk: int) -> HttpResponse:
    """How far joining has come; asked again by the page until the node is online."""
    return render(request, "inventory/node_waiting.html", _waiting(_node(request, pk)))


def _waiting(node: Node) -> dict[str, Any]:
    token = node.join_tokens.first()
    used_at = token.used_at if token else None
    joined = used_at is not None
    reports = used_at is not None and node.last_seen is not None and node.last_seen > used_at
    return {
        "node": node,
        "token": token,
        "joined": joined,
        "online": reports and node.state == NodeState.ONLINE,
        "expired": not joined and (token is None or token.is_expired),
    }


@login_not_required
@csrf_exempt
@never_cache
@require_POST
def node_join(request: HttpRequest) -> JsonResponse:
    """POST /api/v1/nodes/join/: a machine with a token becomes the node for which that was made."""
    address = request.META.get("REMOTE_ADDR")
    try:
        tries = broker.uses(f"join:{of_address(address)}", 60)
    except (redis.RedisError, OSError):
        return _refused(*BROKER_SILENT, status=503)
    if tries > JOINS_PER_MINUTE:
        answer = _refused("address", "too many attempts within a minute", "wait a minute, then try again")
        answer["Retry-After"] = "60"
        return answer
    try:
        join_request = _asked(request)
    except RequestDataTooBig:
        return _refused("body", f"is larger than {LARGEST_JOIN} bytes", status=413)
    except InputError as error:
        return _refused("body", error.allowed, status=422)
    try:
        return JsonResponse(services.join_node(join_request, address=address))
    except services.JoinRefused as error:
        return _refused(error.field, error.reason, error.remedy, value=error.value, status=error.status)
    except (redis.RedisError, OSError):
        return _refused(*BROKER_SILENT, status=503)


def _asked(request: HttpRequest) -> Any:
    """The JSON of the body. Raises RequestDataTooBig or InputError."""
    if int(request.META.get("CONTENT_LENGTH") or 0) > LARGEST_JOIN or len(request.body) > LARGEST_JOIN:
        raise RequestDataTooBig
    return read_document(request.body.decode(errors="surrogateescape"), "body", as_yaml=False)


def _refused(
    field: str, reason: str, remedy: str = "", *, value: str = "", status: int = 429
) -> JsonResponse:
    body = {"field": field, "value": value, "reason": reason, "remedy": remedy}
    return JsonResponse(body, status=status)


@require_POST
def node_enrol(request: HttpRequest, pk: int) -> HttpResponse:
    """Give the node new credentials and show them, once; the old ones are void."""
    node = _node(request, pk)
    try:
        credentials = services.enrol_node(request.user, node)
    except (redis.RedisError, OSError):
        messages.error(request, f"{node} still has its old credentials: {BROKER_AWAY}")
        return redirect("inventory:node-detail", pk=pk)
    return show_once(request, _page_of(node), credentials)


@require_POST
def node_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """Take the node's credentials away, at once."""
    node = _node(request, pk)
    try:
        services.revoke_node(request.user, node)
        messages.success(request, f"The credentials of {node} are revoked and its connections are closed.")
    except (redis.RedisError, OSError):
        messages.error(request, f"{node} still has its credentials: {BROKER_AWAY}")
    return redirect("inventory:node-detail", pk=pk)


def _node_or_dc(request: HttpRequest, of: type[Node] | type[DataCenter], pk: int) -> Node | DataCenter:
    return _node(request, pk) if of is Node else _datacenter(request, pk)


def _datacenter(request: HttpRequest, pk: int) -> DataCenter:
    return visible_or_404(DataCenter.objects.select_related("team"), request.user, pk=pk)


@require_http_methods(["GET", "POST"])
def drain(request: HttpRequest, pk: int, of: type[Node] | type[DataCenter]) -> HttpResponse:
    """Ask what becomes of the runs of a node, or of a data centre, then drain it."""
    thing = _node_or_dc(request, of, pk)
    require(request.user, services.team_of(thing))
    form = DrainForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        ended = services.drain(request.user, thing, form.cleaned_data["runs"])
        message = f"{thing} gets no more work."
        runs = "1 run ends" if ended == 1 else f"{ended} runs end"
        messages.success(request, f"{message} {runs} after a complete iteration." if ended else message)
        return redirect(_page_of(thing))
    context = {
        "title": f"Drain {thing}?",
        "form": form,
        "thing": thing,
        "runs": list(work().on(thing)[:50]),
        "cancel_url": _page_of(thing),
    }
    context = extended("drain", request, context)
    return render(request, "inventory/node_drain.html", context, status=422 if form.errors else 200)


@require_POST
def resume(request: HttpRequest, pk: int, of: type[Node] | type[DataCenter]) -> HttpResponse:
    """Let a node, or a data centre, be given work again."""
    thing = _node_or_dc(request, of, pk)
    services.resume(request.user, thing)
    messages.success(request, f"{thing} gets work again.")
    return redirect(_page_of(thing))


def _page_of(thing: Node | DataCenter) -> str:
    name = "node" if isinstance(thing, Node) else "datacenter"
    return reverse(f"inventory:{name}-detail", args=[thing.pk])


@require_GET
def node_reach(request: HttpRequest) -> HttpResponse:
    """Which nodes reach which, by the last tries."""
    dcs = DataCenter.objects.visible_to(request.user)
    chosen = dcs.filter(pk=whole(request.GET.get("dc")) or 0).first()
    rows = Node.objects.visible_to(request.user).select_related("dc").defer("seen_ranks", "seen_hardware")
    rows = rows.filter(dc=chosen) if chosen else rows
    shown = list(rows.order_by("dc__name", "name")[:MOST_SHOWN])
    matrix = reach_matrix(request.user, shown)
    context = {
        "title": "Reachability",
        "dcs": dcs,
        "chosen": chosen,
        "nodes": shown,
        "total": rows.count(),
        "matrix": matrix,
        "probing": any(cell is not None and cell.is_waiting for row in matrix for cell in row["cells"]),
        "online": [node for node in shown if node.state == NodeState.ONLINE],
    }
    return render(request, "inventory/node_reach.html", context)


@require_POST
def node_probe(request: HttpRequest, pk: int) -> HttpResponse:
    """Try between the node and the others of its team that are online, both ways."""
    node = _node(request, pk)
    others = _online(dc__team=node.dc.team).exclude(pk=node.pk)[: MOST_SHOWN - 1]
    pairs = [pair for other in others for pair in ((node, other), (other, node))]
    return _probe(request, node, pairs, _page_of(node) + "#reach")


@require_POST
def node_probe_all(request: HttpRequest, pk: int) -> HttpResponse:
    """Try between all nodes of the team of data centre `pk` that are online."""
    dc = _datacenter(request, pk)
    rows = list(_online(dc__team=dc.team)[:MOST_SHOWN])
    return _probe(request, dc, [(a, b) for a in rows for b in rows], reverse("inventory:node-reach"))


@require_POST
def link_probe(request: HttpRequest, pk: int) -> HttpResponse:
    """Try between the nodes of both ends of a link, both ways; the round trip goes into its history."""
    link = visible_or_404(WanLink.objects.select_related("a__team", "b__team"), request.user, pk=pk)
    half = MOST_SHOWN // 2
    ends = [list(_online(dc=dc)[:half]) for dc in (link.a, link.b)]
    pairs = [pair for a in ends[0] for b in ends[1] for pair in ((a, b), (b, a))]
    return _probe(request, link.a, pairs, reverse("inventory:link-detail", args=[pk]) + "#reach")


@require_POST
def link_measure(request: HttpRequest, pk: int) -> HttpResponse:
    """Have a node of each end measure round trip and rate."""
    link = visible_or_404(WanLink.objects.select_related("a__team", "b__team"), request.user, pk=pk)
    try:
        services.measure_link(request.user, link)
    except InputError as error:
        messages.error(request, f"No measurement was started: {error.allowed}.")
    return redirect(reverse("inventory:link-detail", args=[pk]) + "#trial")


@require_GET
def link_trial(request: HttpRequest, pk: int) -> HttpResponse:
    """The last measurement of the rate of a link, asked for again while it is under way."""
    link = visible_or_404(WanLink.objects, request.user, pk=pk)
    return render(request, "inventory/link_trial.html", {"link": link, "trial": last_trial(link)})


def _online(**where: Any) -> Any:
    rows = Node.objects.online().exclude(acl_sha256="").filter(**where)
    return rows.select_related("dc__team").order_by("name")


def _probe(request: HttpRequest, thing: Any, pairs: list[tuple[Node, Node]], back: str) -> HttpResponse:
    try:
        rows = services.probe_nodes(request.user, thing, pairs)
        tries = "1 test was" if len(rows) == 1 else f"{len(rows)} tests were"
        messages.success(request, f"{tries} started. The results appear below within seconds.")
    except InputError as error:
        messages.error(request, f"No test was started: {error.allowed}.")
    return redirect(back)


def join_list(request: HttpRequest) -> HttpResponse:
    """The join commands with which a machine can still become a node."""
    require_somewhere(request.user)
    return list_page(
        request,
        title="Join commands",
        note="that work now, each once; used and expired ones are in the audit",
        rows=open_tokens(request.user),
        filter_class=JoinTokenFilterSet,
        table_class=JoinTokenTable,
        empty="No join command is open. Make one on the page of a node.",
        context={"crumbs": _above_joins()[:1]},
    )


def join_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask, then make the command worthless."""
    tokens = JoinToken.objects.unused().select_related("node__dc__team", "created_by")
    token = visible_or_404(tokens, request.user, pk=pk)
    page = reverse("inventory:node-detail", args=[token.node_id])
    if request.method == "POST":
        if services.revoke_join(request.user, token):
            messages.success(request, f"The join command for {token.node} no longer works.")
        else:
            messages.error(request, f"Nothing was revoked: a machine joined as {token.node} meanwhile.")
        return redirect(page)
    context = {
        "title": f"Revoke the join command for {token.node}?",
        "text": f"{token.created_by or 'Meridian'} made it. No machine can join with it any more.",
        "submit_label": "Revoke the join command",
        "cancel_url": page,
        "crumbs": _above_joins(),
    }
    return render(request, "components/confirm.html", context)


def _above_joins() -> list[tuple[str, str]]:
    return [("Nodes", reverse("inventory:node-list")), ("Join commands", reverse("inventory:join-list"))]
