"""Pages of accounts: login and passwords, one's own account, people, teams, invitations, the audit."""

from webapp.accounts.views.account import me
from webapp.accounts.views.login import LoginView, LogoutView, locked_out
from webapp.accounts.views.refused import address_of

__all__ = ["LoginView", "LogoutView", "address_of", "locked_out", "me"]
