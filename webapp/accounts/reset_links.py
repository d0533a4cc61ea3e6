"""One-time links for new passwords: their tokens, which nobody has to keep.

A token carries a hash of the password that it replaces, of the last login, of the e-mail address and of the
time. So it works once, for PASSWORD_RESET_TIMEOUT. One that an admin made names the admin too: it works only
as long as they may manage the account. Else who was an admin yesterday could take an account over today.
"""

from typing import Any

from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.utils.http import base36_to_int, int_to_base36

from webapp.accounts.models import User
from webapp.accounts.permissions import may_manage

MARK = "."  # between the admin and Django's token, which has none


class ResetTokens(PasswordResetTokenGenerator):
    """Makes and checks the tokens; `check_token` takes those of the mail and those that admins make."""

    def make_for(self, maker: Any, user: User) -> str:
        """A token for `user` that is worth what `maker` may do when it is used; None is Meridian itself."""
        if maker is None:
            return self.make_token(user)
        return f"{int_to_base36(maker.pk)}{MARK}{_of(maker.pk).make_token(user)}"

    def check_token(self, user: Any, token: str | None) -> bool:
        """Whether `token` sets a new password of `user` now."""
        if user is None or not user.is_active or not token:
            return False
        by, mark, text = token.rpartition(MARK)
        if not mark:
            return super().check_token(user, token)
        try:
            maker = User.objects.filter(pk=base36_to_int(by), is_active=True).first()
        except ValueError:
            return False
        return maker is not None and may_manage(maker, user) and _of(maker.pk).check_token(user, text)


def _of(maker: int) -> PasswordResetTokenGenerator:
    """Django's tokens, of one maker: those of another do not pass for them."""
    generator = PasswordResetTokenGenerator()
    generator.key_salt = f"webapp.accounts.reset_links.{maker}"
    return generator


reset_tokens = ResetTokens()
