from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "webapp.accounts"

    def ready(self) -> None:
        from webapp import checks  # noqa: F401  # registers them
