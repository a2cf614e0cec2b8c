"""Dirty flags, those in quarantine among them, and scope marks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import SimpleListFilter, action, display
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from visibility.admin import acts
from visibility.admin.base import BoundedAdmin, away_text, confirmed_action
from visibility.datatypes import legible, registry
from visibility.exceptions import RedisAway
from visibility.models import DirtyFlag, ScopeMark
from visibility.templatetags.visibility_admin import moment, resource_link, resource_url, span, state

LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class TypeFilter(SimpleListFilter):
    title = gettext_lazy("data type")
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(data_type.name, data_type.name) for data_type in registry]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(data_type=legible(name)) if (name := self.value()) else queryset


class FlagFilter(SimpleListFilter):
    """Dirty ones unless another state is asked for; each state has an index."""

    title = gettext_lazy("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("quarantined", _("In quarantine")), ("all", _("All, clean ones too"))]

    def choices(self, changelist: Any) -> Any:
        found = list(super().choices(changelist))
        found[0]["display"] = _("Dirty")
        return found

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "quarantined":
            return queryset.filter(quarantined_at__isnull=False)
        # Above a time rather than "not null": that is a range of the index for every planner.
        return queryset if self.value() == "all" else queryset.filter(first_at__gt=LONG_AGO)


def exact(queryset: QuerySet[Any], term: str, field: str) -> QuerySet[Any]:
    """`feed:42` finds one, `42` one of each type: both by the unique index."""
    kind, colon, rest = term.strip().partition(":")
    names = [data_type.name for data_type in registry]
    if colon and kind in names:
        return queryset.filter(Q(data_type=kind, **{field: rest}) | Q(data_type__in=names, **{field: term.strip()}))
    return queryset.filter(data_type__in=names, **{field: term.strip()})


class DirtyFlagAdmin(BoundedAdmin):
    list_display = ("resource", "condition", "since", "age", "changes", "failures", "last_error_short")
    list_display_links = None
    list_filter = (FlagFilter, TypeFilter)
    search_fields = ("key",)
    search_help_text = gettext_lazy("Whole names only: feed:42, or 42 for every type.")
    ordering = ("data_type", "first_at", "key")
    actions = ("rebuild", "release", "discard")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Whether the user may forget snapshots and clear flags."""
        return bool(request.user.has_perm("visibility.delete_dirtyflag"))

    def has_rebuild_permission(self, request: HttpRequest) -> bool:
        """Whether the user may ask for builds and release from quarantine."""
        return bool(request.user.has_perm("visibility.change_dirtyflag"))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        quarantined = request.GET.get("state") == "quarantined"
        return super().changelist_view(request, {"title": _("Quarantine")} if quarantined else extra_context)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return ("-quarantined_at",) if request.GET.get("state") == "quarantined" else ("data_type", "first_at", "key")

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        return (exact(queryset, search_term, "key") if search_term.strip() else queryset), False

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """A flag has no form; its resource has a page."""
        flag = self.get_object(request, object_id)
        if flag is None:
            return super().change_view(request, object_id, form_url, extra_context)
        return HttpResponseRedirect(resource_url(str(flag)))

    def _do(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        name: str,
        title: str,
        text: str,
        button: str,
        done: str,
        act: Callable[[list[str]], int],
    ) -> HttpResponse | None:
        try:
            return confirmed_action(
                self,
                request,
                queryset,
                name=name,
                title=title,
                text=text,
                button=button,
                done=done,
                current="quarantine" if request.GET.get("state") == "quarantined" else "flags",
                act=lambda rows: act([str(row) for row in rows]),
            )
        except RedisAway:
            self.message_user(request, away_text(), messages.ERROR)
            return None

    @action(description=gettext_lazy("Rebuild now"), permissions=["rebuild"])
    def rebuild(self, request: HttpRequest, queryset: QuerySet[DirtyFlag]) -> HttpResponse | None:
        return self._do(
            request,
            queryset,
            "rebuild",
            _("Rebuild these resources?"),
            _("They are put into their lanes and built, watched or not. What is pending already is not built twice."),
            _("Yes, rebuild"),
            _("Asked to be rebuilt"),
            acts.rebuild,
        )

    @action(description=gettext_lazy("Release from quarantine"), permissions=["rebuild"])
    def release(self, request: HttpRequest, queryset: QuerySet[DirtyFlag]) -> HttpResponse | None:
        return self._do(
            request,
            queryset,
            "release",
            _("Release these resources from quarantine?"),
            _("Their failures are forgotten and they are built again. Those that fail again come back here."),
            _("Yes, release"),
            _("Released from quarantine"),
            acts.release,
        )

    @action(description=gettext_lazy("Discard"), permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[DirtyFlag]) -> HttpResponse | None:
        return self._do(
            request,
            queryset,
            "discard",
            _("Discard what is stored of these resources?"),
            _("Their snapshots are forgotten and their flags cleared; the next read builds anew. Who watches gets a build now."),
            _("Yes, discard"),
            _("Discarded"),
            acts.discard,
        )

    @display(description=gettext_lazy("resource"))
    def resource(self, flag: DirtyFlag) -> SafeString:
        return resource_link(str(flag))

    @display(description=gettext_lazy("state"))
    def condition(self, flag: DirtyFlag) -> SafeString:
        if flag.quarantined_at:
            return state("bad", _("in quarantine"))
        return state("warn", _("dirty")) if flag.first_at else state("ok", _("clean"))

    @display(description=gettext_lazy("dirty since"))
    def since(self, flag: DirtyFlag) -> str:
        return moment(flag.first_at)

    @display(description=gettext_lazy("age"))
    def age(self, flag: DirtyFlag) -> str:
        return span((timezone.now() - flag.first_at).total_seconds() if flag.first_at else None)

    @display(description=gettext_lazy("last error"))
    def last_error_short(self, flag: DirtyFlag) -> str:
        return flag.last_error[:120] or "–"


class ScopeMarkAdmin(BoundedAdmin):
    list_display = ("data_type", "scope", "last", "changes")
    list_display_links = None
    list_filter = (TypeFilter,)
    search_fields = ("scope",)
    search_help_text = gettext_lazy("Whole scopes only: author:7.")
    ordering = ("-last_at",)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        # The newest first has an index over all types, not within one.
        return ("data_type", "scope") if request.GET.get("type") or request.GET.get("q") else ("-last_at",)

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        return (exact(queryset, search_term, "scope") if search_term.strip() else queryset), False

    @display(description=gettext_lazy("last change"))
    def last(self, mark: ScopeMark) -> str:
        return moment(mark.last_at)


def register(site: admin.AdminSite) -> None:
    site.register(DirtyFlag, DirtyFlagAdmin)
    site.register(ScopeMark, ScopeMarkAdmin)
