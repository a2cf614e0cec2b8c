from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DemoConfig(AppConfig):
    """People who follow each other, rooms, notifications and tiles: the app that shows visibility at work."""

    name = "project.demo"
    label = "demo"
    verbose_name = _("demo")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from project.demo import receivers

        receivers.connect()
