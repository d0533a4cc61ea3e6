from django.apps import AppConfig

from webapp.common import search
from webapp.common.navigation import Entry, register


class AccountsConfig(AppConfig):
    name = "webapp.accounts"

    def ready(self) -> None:
        from webapp import checks  # noqa: F401  # registers them
        from webapp.accounts.models import READERS, Role
        from webapp.accounts.search import KINDS

        register(
            Entry(order=10, name="overview", label="Overview", address="overview", roles=READERS),
            Entry(
                order=170, name="people", label="People", address="accounts:person-list", roles=[Role.ADMIN]
            ),
            Entry(order=180, name="audit", label="Audit", address="accounts:audit-list", roles=[Role.ADMIN]),
        )
        search.register(*KINDS)
