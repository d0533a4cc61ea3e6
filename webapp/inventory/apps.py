from django.apps import AppConfig


class InventoryConfig(AppConfig):
    name = "webapp.inventory"
