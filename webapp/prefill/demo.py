"""What the demo sells: the model that its run serves, a tenancy that is granted, and a key in a file."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webapp.accounts.models import Team, User
from webapp.accounts.services import token_hash
from webapp.inventory.models import DataCenter
from webapp.prefill.models import ApiKey, Tenancy, TenancyStatus
from webapp.prefill.services import Limits, approve_tenancy, make_key, request_tenancy
from webapp.prefill.services.keys import MOST_LIVE
from webapp.servers.places import demo_key, demo_model, write_private

NAME = "demo"
KEY_NAME = "of the demo"
WHAT = "A tiny Llama over bytes, trained for seconds on the demo's own text; its text has no meaning."
ASKED = {
    "asked_tokens_per_min": 60_000,
    "asked_ttft_ms": 10_000,
    "asked_days": 365,
    "typical_prompt": 64,
    "asked_longest_prompt": 1024,
}
LIMITS = Limits(tokens_per_min=60_000, ttft_ms=10_000, longest_prompt=1024, price=1_500_000, days=365)
SETTINGS = {
    "dtype": "fp32",
    "weight_budget_gb": 0.01,
    "kv_budget_gb": 0.01,
    "latency": {"a_ms": 2, "b_ms": 0.1, "c_ms": 0},
    "chunk_tokens": 16,
    # A dozen GPUs on a laptop's cores: their noise alone is several per cent.
    "pause_slowdown": 0.05,
}


def section(var: Path) -> dict[str, Any] | None:
    """`prefill` of the demo's document; None where the model could not be made."""
    folder = demo_model(var)
    if not (folder / "config.json").exists():
        return None
    return {"checkpoint": str(folder), "name": folder.name, **SETTINGS}


def sell(var: Path, team: Team, tenant: User, admin: User, datacenters: Sequence[DataCenter]) -> None:
    """See that `tenant` has a tenancy of the model that a run of `team` serves, and a key in the demo's file.

    What people have decided about the tenancy since stays as it is.
    """
    tenancy = Tenancy.objects.filter(team=team, tenant=tenant, name=NAME).first()
    if tenancy is None:
        request = Tenancy(team=team, name=NAME, purpose="The demo", model=demo_model(var).name, **ASKED)
        tenancy = request_tenancy(tenant, request, datacenters)
        # The run that serves it begins afterwards: nothing is there to sell yet.
        tenancy = approve_tenancy(admin, tenancy, LIMITS, datacenters, WHAT, oversell=True)
    live = ApiKey.objects.filter(tenancy=tenancy).live()
    if tenancy.state != TenancyStatus.ACTIVE or _is_there(demo_key(var), live) or live.count() >= MOST_LIVE:
        return
    _, text = make_key(tenant, tenancy, KEY_NAME)
    write_private(demo_key(var), f"{text}\n")


def key_command(var: Path, tenancy: Tenancy) -> str:
    """What puts the key of the demo's file into a shell; empty where it opens nothing of `tenancy`."""
    path = demo_key(var)
    there = _is_there(path, ApiKey.objects.filter(tenancy=tenancy).live())
    return f"export MERIDIAN_KEY=$(cat {shlex.quote(str(path))})" if there else ""


def _is_there(path: Path, live: Any) -> bool:
    try:
        return bool(live.filter(sha256=token_hash(path.read_text().strip())).exists())
    except OSError:
        return False
