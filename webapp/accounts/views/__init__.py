"""Pages of accounts: login and passwords, one's own account, people, teams, invitations, the audit."""

from webapp.accounts.views.account import me
from webapp.accounts.views.login import LoginView, LogoutView, locked_out

__all__ = ["LoginView", "LogoutView", "locked_out", "me"]
