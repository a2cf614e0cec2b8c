"""The live pages: overview, watchers, presence, lanes, one resource, diagnosis; and what may be done from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin import ModelAdmin
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _, ngettext

from visibility import doctor
from visibility.admin import acts, charts, dashboard, figures
from visibility.admin.base import away_text, confirm, log_resource
from visibility.datatypes import parse_resource, registry
from visibility.exceptions import BadResource, RedisAway, UnknownDataType, VisibilityError
from visibility.explain import explain
from visibility.models import Event, Overview
from visibility.presence import Presence, drop, presence
from visibility.soft import pages
from visibility.templatetags.visibility_admin import resource_url

PER_PAGE = 50
DROPS = ("user", "node", "session", "data_type", "resource")


def offset_of(request: HttpRequest) -> int:
    """The page's first row; nonsense is the beginning."""
    text = request.GET.get("offset", "0")
    return min(int(text), 10**9) if text.isdecimal() and len(text) < 12 else 0


class OverviewAdmin(ModelAdmin):  # type: ignore[type-arg]
    """Pages without a table. `view_overview` shows them, `drop_leases` lets drop watches, and the flags' permissions the rest."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_drop_permission(self, request: HttpRequest) -> bool:
        """Whether the user may end other people's watches."""
        return bool(request.user.has_perm("visibility.drop_leases"))

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
            return path(route, self.admin_site.admin_view(view), name=f"visibility_overview_{name}")

        own = [
            page("", self.changelist_view, "changelist"),
            page("watchers/", self.watchers_view, "watchers"),
            page("presence/", self.presence_view, "presence"),
            page("lanes/", self.lanes_view, "lanes"),
            page("diagnosis/", self.diagnosis_view, "diagnosis"),
            page("resource/", self.resource_view, "resource"),
            page("drop/", self.drop_view, "drop"),
        ]
        return [
            *own,
            path("<path:object_id>/change/", self.admin_site.admin_view(self.change_view), name="visibility_overview_change"),
        ]

    def _page(self, request: HttpRequest, template: str, current: str, title: str, **context: Any) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        common = {**self.admin_site.each_context(request), "opts": self.opts, "current": current, "title": title}
        common["may_drop"] = self.has_drop_permission(request)
        return TemplateResponse(request, f"admin/visibility/{template}.html", {**common, **context})

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The overview."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = dashboard.overview(request.GET.get("range", ""))
        events = (
            Event.objects.order_by("-id").defer("body", "error")[:8] if request.user.has_perm("visibility.view_event") else ()
        )
        return self._page(
            request,
            "overview",
            "overview",
            _("Overview"),
            found=found,
            events=events,
            ranges=figures.RANGES.values(),
            away="" if found.states["redis"] == "ok" else away_text(),
        )

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """Where log entries of the live pages lead: to the resource, if it is one."""
        back = reverse("admin:visibility_overview_changelist")
        return HttpResponseRedirect(resource_url(object_id) if ":" in object_id else back)

    def watchers_view(self, request: HttpRequest) -> HttpResponse:
        """What is visible, by data type."""
        names = [data_type.name for data_type in registry]
        chosen = request.GET.get("type", "")
        chosen = chosen if chosen in names else next(iter(names), "")
        rows, away, crowds = None, "", dict[str, Any]()
        try:
            crowds = {name: pages.crowd(name, 1).visible for name in names}
            rows = pages.shown(chosen, offset_of(request), PER_PAGE) if chosen else None
        except RedisAway:
            away = away_text()
        return self._page(
            request,
            "watchers",
            "watchers",
            _("Watchers"),
            names=names,
            chosen=chosen,
            rows=rows,
            away=away,
            crowds=crowds,
            here=urlencode({"type": chosen}),
        )

    def presence_view(self, request: HttpRequest) -> HttpResponse:
        """Who is online; with `user`, that one only."""
        asked = request.GET.get("user", "").strip()[:200]
        rows, away, people = None, "", list[Presence]()
        try:
            if asked:
                people = list(presence([asked]).values())
            else:
                rows = pages.people(offset_of(request), PER_PAGE)
                people = list(presence([row.user for row in rows.rows]).values())
        except RedisAway:
            away = away_text()
        return self._page(
            request,
            "presence",
            "presence",
            _("Presence"),
            people=people,
            names=self._names(request, [str(one.user_id) for one in people]),
            rows=rows,
            asked=asked,
            away=away,
            here="",
        )

    def _names(self, request: HttpRequest, keys: list[str]) -> dict[str, str]:
        """User names by key, for those who may see users: one query."""
        model = get_user_model()
        if not request.user.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}"):
            return {}
        pks = []
        for key in keys:
            with contextlib.suppress(ValidationError):
                pks.append(model._meta.pk.to_python(key))
        return {str(user.pk): user.get_username() for user in model._default_manager.filter(pk__in=pks)}

    def lanes_view(self, request: HttpRequest) -> HttpResponse:
        """Lanes with what waits and what is being built."""
        lanes, away = list[dict[str, Any]](), ""
        locks = None
        try:
            for line in dashboard.lanes():
                first = offset_of(request) if request.GET.get("lane") == line.name else 0
                waiting = pages.waiting(line.name, first, 25)
                here = urlencode({"lane": line.name})
                lanes.append({"line": line, "waiting": waiting, "claims": pages.claims(line.name, 0, 25), "here": here})
            locks = pages.locks(offset_of(request) if request.GET.get("locks") else 0, 25)
        except RedisAway:
            away = away_text()
        return self._page(request, "lanes", "lanes", _("Lanes and locks"), lanes=lanes, locks=locks, away=away)

    def diagnosis_view(self, request: HttpRequest) -> HttpResponse:
        """What the doctor finds now."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        css = {doctor.CRITICAL: "bad", doctor.WARNING: "warn"}
        found = [(css.get(one.severity, "info"), one) for one in doctor.examine()]
        return self._page(request, "diagnosis", "diagnosis", _("Diagnosis"), found=found, checks=len(doctor.CHECKS))

    def resource_view(self, request: HttpRequest) -> HttpResponse:
        """The inspector: why a resource is hot or cold. POST rebuilds, discards or releases it."""
        name = request.GET.get("name", "").strip()
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request, name)
        if not name:
            return self._page(request, "resource", "inspect", _("Resource"), name="", found=None)
        try:
            found = explain(name)
        except (BadResource, UnknownDataType) as error:
            return self._page(request, "resource", "inspect", _("Resource"), name=name, found=None, error=str(error))
        return self._page(
            request,
            "resource",
            "inspect",
            name,
            name=name,
            found=found,
            dots=charts.strip([(one["at"], one["kind"], one["text"]) for one in found["timeline"]], timezone.now()),
            may_rebuild=request.user.has_perm("visibility.change_dirtyflag"),
            may_discard=request.user.has_perm("visibility.delete_dirtyflag"),
        )

    def _act(self, request: HttpRequest, name: str) -> HttpResponse:
        what = request.POST.get("act", "")
        known: dict[str, tuple[str, Callable[[list[str]], int], str, str, str]] = {
            "rebuild": (
                "change_dirtyflag",
                acts.rebuild,
                _("Rebuild it?"),
                _("It is put into its lane, watched or not."),
                _("Asked to be rebuilt"),
            ),
            "release": (
                "change_dirtyflag",
                acts.release,
                _("Release it from quarantine?"),
                _("It is built again; if it fails, it comes back."),
                _("Released from quarantine"),
            ),
            "discard": (
                "delete_dirtyflag",
                acts.discard,
                _("Discard what is stored?"),
                _("The next read builds it anew."),
                _("Discarded"),
            ),
        }
        if what not in known:
            raise Http404
        permission, act, title, text, done = known[what]
        if not request.user.has_perm(f"visibility.{permission}"):
            raise PermissionDenied
        here = resource_url(name)
        try:
            parse_resource(name)
        except (BadResource, UnknownDataType) as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(here)
        if not request.POST.get("confirmed"):
            return confirm(
                request,
                self,
                title=title,
                text=text,
                names=[name],
                fields=[("act", what)],
                button=_("Yes"),
                current="inspect",
                back=here,
            )
        try:
            act([name])
            log_resource(request, name, done)
            self.message_user(request, f"{name}: {done}", messages.SUCCESS)
        except RedisAway:
            self.message_user(request, away_text(), messages.ERROR)
        return HttpResponseRedirect(here)

    def drop_view(self, request: HttpRequest) -> HttpResponse:
        """End the watches of one user, node, session, data type or resource."""
        if not self.has_drop_permission(request):
            raise PermissionDenied
        back = reverse("admin:visibility_overview_presence")
        what, value = request.POST.get("what", ""), request.POST.get("value", "").strip()
        if request.method != "POST" or what not in DROPS or not value:
            if request.method == "POST":
                self.message_user(request, _("Say what to drop, and of whom."), messages.WARNING)
            return HttpResponseRedirect(back)
        if not request.POST.get("confirmed"):
            text = _("Sockets stay open and are told that their watches ended; they come back only if the page asks again.")
            return confirm(
                request,
                self,
                title=_("Drop these watches?"),
                text=text,
                names=[f"{what} {value}"],
                fields=[("what", what), ("value", value)],
                button=_("Yes, drop"),
                current="presence",
                back=back,
            )
        try:
            n = drop(**{what: value})
        except RedisAway:
            self.message_user(request, away_text(), messages.ERROR)
        except (VisibilityError, ValueError) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            log_resource(request, value if what == "resource" else f"{what} {value}", _("Watches dropped"))
            shown = ngettext("%(n)d watch of %(what)s %(value)s dropped.", "%(n)d watches of %(what)s %(value)s dropped.", n)
            self.message_user(request, shown % {"n": n, "what": what, "value": value}, messages.SUCCESS)
        return HttpResponseRedirect(back)


def register(site: admin.AdminSite) -> None:
    site.register(Overview, OverviewAdmin)
