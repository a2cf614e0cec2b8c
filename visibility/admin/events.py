"""The log of events: ids found in all of it, filters over its newest part, the gate's reasons, another try for what failed."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import SimpleListFilter, action, display
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _, gettext_lazy

from visibility.admin.base import BoundedAdmin, confirmed_action
from visibility.datatypes import legible, registry
from visibility.insight.happenings import decided
from visibility.models import Event
from visibility.templatetags.visibility_admin import event_name, moment, outcome_css, outcome_word, span, state

NEWEST = 20_000


def first_id(at: dt.datetime) -> uuid.UUID:
    """The lowest event id of a moment: ids begin with the time, so that a span of time is a range of the primary key."""
    return uuid.UUID(int=int(at.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62)


def newest(request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
    """The newest `NEWEST` events: what filters without an index may look through."""
    if not hasattr(request, "visibility_cutoff"):
        cutoff = Event.objects.order_by("-pk").values_list("pk", flat=True)[NEWEST : NEWEST + 1].first()
        request.visibility_cutoff = cutoff  # type: ignore[attr-defined]
        if cutoff is not None:
            # Ids begin with the milliseconds of their moment.
            back = formats.date_format(
                timezone.localtime(dt.datetime.fromtimestamp((cutoff.int >> 80) / 1000, dt.UTC)), "SHORT_DATETIME_FORMAT"
            )
            text = _(
                "This list looks through the newest %(n)s events only, back to %(back)s. In the whole log only an event's id and "
                "an external id are found."
            ) % {"n": f"{NEWEST:,}".replace(",", "\u202f"), "back": back}
            messages.warning(request, text)
    found = request.visibility_cutoff  # type: ignore[attr-defined]
    return queryset if found is None else queryset.filter(pk__gt=found)


class AgeFilter(SimpleListFilter):
    title = gettext_lazy("age")
    parameter_name = "age"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("5", _("Last 5 minutes")), ("60", _("Last hour")), ("1440", _("Last day")), ("10080", _("Last 7 days"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        value = self.value()
        if value is None or not value.isdigit():
            return queryset
        return queryset.filter(pk__gte=first_id(timezone.now() - dt.timedelta(minutes=min(int(value), 10**6))))


class OutcomeFilter(SimpleListFilter):
    title = gettext_lazy("outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(value or "waiting", label) for value, label in Event.Outcome.choices]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        value = self.value()
        if value is None:
            return queryset
        if value == "waiting":
            return queryset.filter(processed_at=None)
        return newest(request, queryset).filter(outcome=value)


class SourceFilter(SimpleListFilter):
    title = gettext_lazy("source")
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(Event.Source.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        return newest(request, queryset).filter(source=self.value()) if self.value() else queryset


class EventTypeFilter(SimpleListFilter):
    title = gettext_lazy("data type")
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(data_type.name, data_type.name) for data_type in registry]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Event]) -> QuerySet[Event]:
        name = legible(self.value() or "")
        if not name:
            return queryset
        one = Q(data_type=name) | Q(data_type__startswith=f"{name},") | Q(data_type__endswith=f",{name}")
        return newest(request, queryset).filter(one | Q(data_type__contains=f",{name},"))


class EventAdmin(BoundedAdmin):
    list_display = ("at", "what", "decided", "reasons", "outcome_shown", "took")
    list_display_links = ("at",)
    list_filter = (AgeFilter, OutcomeFilter, SourceFilter, EventTypeFilter)
    search_fields = ("object_pk",)
    search_help_text = gettext_lazy(
        "Whole values only. In the whole log: an event's id, an external id. "
        "Among the newest events: an object's key, a model, a tenant."
    )
    ordering = ("-id",)
    actions = ("again",)
    fields = (
        "id",
        "source",
        "what",
        "types",
        "using",
        "external_id",
        "version",
        "tenant",
        "at",
        "processed",
        "outcome_shown",
        "attempts",
        "took",
        "decision_table",
        "error_shown",
        "body_shown",
    )

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_again_permission(self, request: HttpRequest) -> bool:
        """Whether the user may have failed events tried again."""
        return bool(request.user.has_perm("visibility.change_event"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Event]:
        return super().get_queryset(request).defer("body", "error")

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()[:255]
        if not term:
            return queryset, False
        try:
            return queryset.filter(pk=uuid.UUID(term)), False
        except ValueError:
            emitted = queryset.filter(data_type__in=[one.name for one in registry], external_id=term)
            if emitted.exists():
                return emitted, False
            return newest(request, queryset).filter(Q(object_pk=term) | Q(model__iexact=term) | Q(tenant=term)), False

    @action(description=gettext_lazy("Take through the gate again"), permissions=["again"])
    def again(self, request: HttpRequest, queryset: QuerySet[Event]) -> HttpResponse | None:
        def act(rows: list[Event]) -> int:
            failed = [row.pk for row in rows if row.outcome in (Event.Outcome.FAILED, Event.Outcome.WAITING)]
            again = {"processed_at": None, "outcome": Event.Outcome.WAITING, "attempts": 0, "retry_at": None}
            return Event.objects.filter(pk__in=failed, outcome__in=(Event.Outcome.FAILED, Event.Outcome.WAITING)).update(**again)

        return confirmed_action(
            self,
            request,
            queryset,
            name="again",
            title=_("Take through the gate again?"),
            text=_(
                "Failed and waiting events among these are decided anew by the maintenance loop; the others stay as they are."
            ),
            button=_("Yes, try again"),
            current="events",
            act=act,
            done=_("To be taken through the gate again"),
        )

    @display(description=gettext_lazy("created"))
    def at(self, event: Event) -> str:
        return moment(event.created_at)

    @display(description=gettext_lazy("processed"))
    def processed(self, event: Event) -> str:
        return moment(event.processed_at)

    @display(description=gettext_lazy("change"))
    def what(self, event: Event) -> str:
        return event_name(event)

    @display(description=gettext_lazy("data types"))
    def types(self, event: Event) -> str:
        return ", ".join(event.verdicts) or event.data_type.replace(",", ", ") or "–"

    @display(description=gettext_lazy("outcome"))
    def outcome_shown(self, event: Event) -> SafeString:
        return state(outcome_css(event.outcome), outcome_word(event.outcome))

    @display(description=gettext_lazy("the gate's decision"))
    def decided(self, event: Event) -> str:
        rows = ((name, decided(one)) for name, one in event.verdicts.items())
        return format_html_join(mark_safe("<br>"), "{}: {}", rows) or self.types(event)

    @display(description=gettext_lazy("reasons"))
    def reasons(self, event: Event) -> str:
        counts: dict[str, int] = {}
        for one in event.verdicts.values():
            for why, n in (one.get("reasons") or {}).items():
                if n:
                    counts[why] = counts.get(why, 0) + int(n)
        return ", ".join(f"{why} × {n}" for why, n in sorted(counts.items())) or "–"

    @display(description=gettext_lazy("took"))
    def took(self, event: Event) -> str:
        return span(None if event.took_ms is None else event.took_ms / 1000)

    @display(description=gettext_lazy("decision"))
    def decision_table(self, event: Event) -> str:
        rows = [
            (
                name,
                decided(one),
                ", ".join(f"{why} × {n}" for why, n in (one.get("reasons") or {}).items()) or "–",
            )
            for name, one in event.verdicts.items()
        ]
        if not rows:
            return "–"
        head = [_("data type"), _("decision"), _("reasons")]
        cells = format_html_join("", '<th scope="col">{}</th>', ((name,) for name in head))
        body = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td><td>{}</td></tr>', rows)
        return format_html('<table class="vis-table"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>', cells, body)

    @display(description=gettext_lazy("error"))
    def error_shown(self, event: Event) -> str:
        return format_html('<pre class="vis-pre">{}</pre>', event.error) if event.error else "–"

    @display(description=gettext_lazy("body"))
    def body_shown(self, event: Event) -> str:
        if event.body is None:
            return "–"
        return format_html('<pre class="vis-pre">{}</pre>', json.dumps(event.body, indent=2, ensure_ascii=False)[:10_000])


def register(site: admin.AdminSite) -> None:
    site.register(Event, EventAdmin)
