"""Clients of people who are logged in already."""

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils.crypto import get_random_string

from webapp.accounts.models import User


def logged_in(user: User) -> Client:
    """A client whose cookie is of a session of `user`, which is one row.

    Django's `force_login` begins, saves and renews a session and tells all who listen of it: as much work as
    many a page. Tests of logging in use the login page.
    """
    store = SessionStore()
    content = {
        SESSION_KEY: str(user.pk),
        BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[-1],
        HASH_SESSION_KEY: user.get_session_auth_hash(),
    }
    session = Session.objects.create(
        session_key=get_random_string(32),
        session_data=store.encode(content),
        expire_date=store.get_expiry_date(),
    )
    client = Client()
    client.cookies[settings.SESSION_COOKIE_NAME] = session.session_key
    return client
