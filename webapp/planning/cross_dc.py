"""A plan, or a what-if of it, against data parallelism over the WAN: computed by the search worker."""

import json
from collections.abc import Iterator
from typing import Any

from django.utils.http import urlencode

from engine.errors import InputError
from engine.schedule.contention import schedule_name
from webapp.accounts.permissions import may
from webapp.computations.models import ComputationKind, ComputationState
from webapp.planning.models import Plan
from webapp.planning.what_if import WhatIf

MODES = {None: "as planned", "none": "none", "selective": "attention\u2019s core", "full": "whole stages"}
KINDS = {"pipeline": "Pipeline", "data": "Data"}


def own_comparison(plan: Plan) -> dict[str, Any]:
    """The row that compares the plan as it is, with its own batch and recomputation.

    Raises InputError if it is not computed.
    """
    comparison = plan.latest(ComputationKind.CROSS_DC, plan.request)
    rows = [] if comparison is None else (comparison.answer or {}).get("rows", [])
    if not rows:
        raise InputError("data", None, "compare the plan with data parallelism first")
    return dict(rows[0])  # the variants begin with the plan as it is


def cross_dc_context(plan: Plan, what: WhatIf, user: Any) -> dict[str, Any]:
    """The context of planning/cross_dc.html; `cross_dc` is None unless two data centres have GPUs."""
    if sum(bool(dc["gpus"]) for dc in what.document["datacenters"]) < 2:
        return {"cross_dc": None}
    comparison = plan.latest(ComputationKind.CROSS_DC, what.document)
    rows = [] if comparison is None else (comparison.answer or {}).get("rows", [])
    return {
        "plan": plan,
        "what_query": urlencode(what.used),
        "what_vals": json.dumps(what.used),
        "may_operate": may(user, plan.team),
        "cross_dc": {
            "of_plan": not what.is_changed,
            "state": "" if comparison is None else comparison.state,
            "is_open": comparison is not None and comparison.is_open,
            "stopping": comparison is not None and comparison.cancel_asked,
            "may_start": comparison is None
            or comparison.state in (ComputationState.FAILED, ComputationState.CANCELLED),
            "progress": {} if comparison is None else comparison.progress or {},
            "error": "" if comparison is None else comparison.error,
            "rows": [_row(row) for row in rows],
            "reasons": list(_reasons(rows)),
        },
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table, with its reasons in words."""
    sides = {kind: {**row[kind], "policy_name": _policy(row[kind])} for kind in KINDS}
    return {
        **row,
        **sides,
        "sides": list(sides.items()),
        "percent": row["speedup"] and 100 * (row["speedup"] - 1),
        "mode": MODES[row["recompute"]],
        "faster_name": KINDS.get(row["faster"], ""),
    }


def _reasons(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A sentence for each reason why one of the two cannot be, with the rows that it is of if not of all."""
    of_rows: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        named = f"batch × {row['batch_factor']}, recomputation {MODES[row['recompute']]}"
        for kind in KINDS:
            if row[kind]["reason"]:
                of_rows.setdefault((kind, row[kind]["reason"]), []).append(named)
    for (kind, reason), names in of_rows.items():
        where = "" if len(names) == len(rows) else f" ({'; '.join(names)})"
        yield f"{KINDS[kind]} parallelism is not possible{where}: {reason}."


def _policy(side: dict[str, Any]) -> str:
    return schedule_name(side["policy"], side["contention"]) if side["policy"] else ""
