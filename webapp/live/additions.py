"""What live data adds to the pages of the inventory."""

from django.http import HttpRequest

from webapp.common.additions import Addition, Context
from webapp.live.models import RefusedEvents


def _of_node(request: HttpRequest, context: Context) -> Context:
    return {"refused_events": RefusedEvents.objects.filter(node=context["node"]).first()}


ADDITIONS = (
    Addition(page="plan-form", order=10, name="measured", templates={"above": "live/measured.html"}),
    Addition(
        page="node",
        order=20,
        name="refused",
        context=_of_node,
        templates={"lines": "live/node_refused.html"},
    ),
)
