"""The app: finds data types in `<app>/visibility.py` and listens to the models that they name."""

from __future__ import annotations

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
        # Nothing of Redis, Channels or RQ is imported here; tests/test_packaging.py holds that.
        from visibility import checks, receivers
        from visibility.datatypes import registry
        from visibility.events import sources
        from visibility.insight import logs

        checks.register_all()
        autodiscover_modules("visibility")
        registry.subscribe(sources.connect)
        receivers.connect()
        logs.connect()
