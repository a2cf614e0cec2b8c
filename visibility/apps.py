"""The app: its label, its default primary key, and the discovery of data types."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class VisibilityConfig(AppConfig):
    name = "visibility"
    label = "visibility"
    verbose_name = _("Visibility")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        autodiscover_modules("visibility")
