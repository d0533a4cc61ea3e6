"""Every change of tenancies, keys, usage and notices, and the start of replays."""

from webapp.prefill.services.decisions import (
    Limits,
    approve_tenancy,
    refuse_tenancy,
    resume_tenancy,
    suspend_tenancy,
)
from webapp.prefill.services.keys import make_key, note_key_use, revoke_key, rotate_key
from webapp.prefill.services.notices import mail_notices, tell
from webapp.prefill.services.replays import start_replay
from webapp.prefill.services.requests import ask_renewal, request_tenancy, withdraw_tenancy
from webapp.prefill.services.terms import end_tenancies, warn_of_ends
from webapp.prefill.services.usage import drop_request, open_request, record_usage

__all__ = [
    "Limits",
    "approve_tenancy",
    "ask_renewal",
    "drop_request",
    "end_tenancies",
    "mail_notices",
    "make_key",
    "note_key_use",
    "open_request",
    "record_usage",
    "refuse_tenancy",
    "request_tenancy",
    "resume_tenancy",
    "revoke_key",
    "rotate_key",
    "start_replay",
    "suspend_tenancy",
    "tell",
    "warn_of_ends",
    "withdraw_tenancy",
]
