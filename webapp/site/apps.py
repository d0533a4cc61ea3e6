from django.apps import AppConfig

from webapp.common import search


class SiteConfig(AppConfig):
    name = "webapp.site"

    def ready(self) -> None:
        from webapp.site.search import KINDS

        search.register(*KINDS)
