from django.apps import AppConfig


class ComputationsConfig(AppConfig):
    name = "webapp.computations"
