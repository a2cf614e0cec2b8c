"""The app: finds data types in `<app>/visibility.py` and listens to the models that they name."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class VisibilityConfig(AppConfig):
    """`INSTALLED_APPS = [..., "visibility"]`"""

    name = "visibility"
    label = "visibility"
    verbose_name = _("Visibility")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from visibility import checks
        from visibility.datatypes import registry
        from visibility.events import sources

        checks.register_all()
        autodiscover_modules("visibility")
        registry.subscribe(sources.connect)
        for name in ("visibility.access", "visibility.insight.logs", "visibility.insight.spans"):
            # Receivers of their own, where that part is there.
            if find_spec(name) is not None and (start := getattr(import_module(name), "connect", None)) is not None:
                start()
