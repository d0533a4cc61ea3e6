"""Mail that people get, where a mail server is named (MERIDIAN_EMAIL_HOST)."""

import smtplib

import structlog
from django.conf import settings
from django.core.mail import send_mail
from django.template.loader import render_to_string

from webapp.accounts.models import Invitation

log = structlog.get_logger(__name__)


def configured() -> bool:
    """Whether mail can be sent."""
    return bool(settings.EMAIL_HOST)


def send_invitation(invitation: Invitation, url: str) -> bool:
    """Send `url` to whom the invitation is for; returns whether the mail server took it."""
    if not configured():
        return False
    text = render_to_string("accounts/invitation_mail.txt", {"invitation": invitation, "url": url})
    subject = f"Invitation to {invitation.team} on Meridian"
    try:
        return send_mail(subject, text, None, [invitation.email]) > 0
    except (OSError, smtplib.SMTPException) as error:
        log.warning("invitation not sent", invitation=invitation.pk, error=str(error))
        return False


def send_notice(address: str, subject: str, text: str) -> bool:
    """Send a few sentences to `address`; returns whether the mail server took them."""
    try:
        return send_mail(subject, f"{text}\n", None, [address]) > 0
    except (OSError, smtplib.SMTPException) as error:
        log.warning("notice not sent", error=str(error))
        return False
