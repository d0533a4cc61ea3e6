from django.apps import AppConfig


class PrefillConfig(AppConfig):
    name = "webapp.prefill"
