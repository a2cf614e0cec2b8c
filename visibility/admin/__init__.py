"""The admin of this app. Registered with the default site; for a site of your own, call `register(site)`.

To leave it out: `admin.site.unregister(visibility.admin.MODELS)`. To change a page, unregister its model and register a subclass
of the class here.
"""

from __future__ import annotations

from django.contrib import admin

from visibility.admin import events, live, marks, slo
from visibility.admin.base import BoundedAdmin, BoundedPaginator
from visibility.admin.events import EventAdmin
from visibility.admin.live import OverviewAdmin
from visibility.admin.marks import DirtyFlagAdmin, ScopeMarkAdmin
from visibility.admin.slo import FreshnessSLOAdmin
from visibility.models import DirtyFlag, Event, FreshnessSLO, Overview, ScopeMark

__all__ = [
    "MODELS",
    "BoundedAdmin",
    "BoundedPaginator",
    "DirtyFlagAdmin",
    "EventAdmin",
    "FreshnessSLOAdmin",
    "OverviewAdmin",
    "ScopeMarkAdmin",
    "register",
]
MODELS = (Overview, FreshnessSLO, Event, DirtyFlag, ScopeMark)


def register(site: admin.AdminSite) -> None:
    """Add this app's pages to an admin site."""
    for part in (live, slo, events, marks):
        part.register(site)


register(admin.site)
