"""Every change of users, teams and roles, and the audit row that every service writes."""

from webapp.accounts.services.archiving import Busy, archive, locked, restore
from webapp.accounts.services.audit import record
from webapp.accounts.services.describing import describe
from webapp.accounts.services.invitations import (
    accept_invitation,
    invite,
    join_with_new_account,
    open_invitation,
    revoke_invitation,
    token_hash,
)
from webapp.accounts.services.passwords import (
    change_password,
    make_reset_link,
    note_reset_mail,
    reset_password,
)
from webapp.accounts.services.people import activate, change_profile, deactivate, ensure_user, unlock
from webapp.accounts.services.sessions import (
    drop_sessions,
    end_other_sessions,
    forget_expired,
    move_session,
    note_failed_login,
    note_login,
    note_logout,
)
from webapp.accounts.services.teams import (
    LastAdmin,
    create_team,
    ensure_team,
    keep_an_admin,
    remove_member,
    rename_team,
    set_role,
)

__all__ = [
    "Busy",
    "LastAdmin",
    "accept_invitation",
    "activate",
    "archive",
    "change_password",
    "change_profile",
    "create_team",
    "deactivate",
    "describe",
    "drop_sessions",
    "end_other_sessions",
    "ensure_team",
    "ensure_user",
    "forget_expired",
    "invite",
    "join_with_new_account",
    "keep_an_admin",
    "locked",
    "make_reset_link",
    "move_session",
    "note_failed_login",
    "note_login",
    "note_logout",
    "note_reset_mail",
    "open_invitation",
    "record",
    "remove_member",
    "rename_team",
    "reset_password",
    "restore",
    "revoke_invitation",
    "set_role",
    "token_hash",
    "unlock",
]
