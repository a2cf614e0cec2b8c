"""Tags and filters of the admin's pages: durations, shares, moments, states, the bar of links."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any
from urllib.parse import urlencode

from django import template
from django.template.context import RequestContext
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from visibility.insight.happenings import decided
from visibility.insight.reasons import span as span_text
from visibility.models import Event

register = template.Library()
NONE = "–"
LONGEST_NAME = 20
ICONS = {"ok": "✓", "warn": "!", "bad": "✗", "none": "○", "hot": "●", "cold": "○", "info": "·"}
PAGES = (
    ("overview", gettext_lazy("Overview"), "overview_changelist", "visibility.view_overview"),
    ("inspect", gettext_lazy("Inspect"), "overview_resource", "visibility.view_overview"),
    ("slo", gettext_lazy("Freshness promises"), "freshnessslo_changelist", "visibility.view_freshnessslo"),
    ("events", gettext_lazy("Events"), "event_changelist", "visibility.view_event"),
    ("flags", gettext_lazy("Dirty flags"), "dirtyflag_changelist", "visibility.view_dirtyflag"),
    ("quarantine", gettext_lazy("Quarantine"), "dirtyflag_changelist", "visibility.view_dirtyflag"),
    ("scopes", gettext_lazy("Scope marks"), "scopemark_changelist", "visibility.view_scopemark"),
    ("watchers", gettext_lazy("Watchers"), "overview_watchers", "visibility.view_overview"),
    ("presence", gettext_lazy("Presence"), "overview_presence", "visibility.view_overview"),
    ("lanes", gettext_lazy("Lanes"), "overview_lanes", "visibility.view_overview"),
    ("diagnosis", gettext_lazy("Diagnosis"), "overview_diagnosis", "visibility.view_overview"),
)


@register.inclusion_tag("admin/visibility/includes/nav.html", takes_context=True)
def visibility_nav(context: RequestContext, current: str = "") -> dict[str, Any]:
    """Links to this app's pages, as far as the user may see them."""
    user = context["request"].user
    links = []
    for slug, name, view, permission in PAGES:
        if user.has_perm(permission) or user.has_perm(permission.replace(".view_", ".change_")):
            url = reverse(f"admin:visibility_{view}") + ("?state=quarantined" if slug == "quarantine" else "")
            links.append({"name": name, "url": url, "current": slug == current})
    return {"links": links}


@register.simple_tag(takes_context=True)
def visibility_current(context: RequestContext) -> str:
    """Which of the pages a change list is."""
    opts = context.get("opts")
    slug = {"freshnessslo": "slo", "event": "events", "dirtyflag": "flags", "scopemark": "scopes"}.get(
        getattr(opts, "model_name", ""), ""
    )
    quarantined = slug == "flags" and context["request"].GET.get("state") == "quarantined"
    return "quarantine" if quarantined else slug


@register.filter
def span(seconds: float | str | None) -> str:
    """Seconds as a duration for people; a dash for None, and for what a template found nothing for."""
    return NONE if seconds in (None, "") else span_text(float(seconds)).replace(" ", "\u00a0")


@register.filter
def percent(share: float | None, places: int = 1) -> str:
    """A share of 0 to 1 as per cent; a dash for None."""
    return NONE if share is None else f"{formats.number_format(share * 100, int(places))} %"


@register.filter
def number(value: float | None) -> str:
    """A number with groups of three; a dash for None."""
    if value is None:
        return NONE
    whole = int(value)
    return f"{whole:,}".replace(",", "\u202f") if whole == value else formats.number_format(value, 2)


@register.filter
def size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return NONE
    return f"{count} B" if count < 1000 else f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


@register.filter
def moment(at: dt.datetime | str | None) -> str | SafeString:
    """A `time` element of a datetime or of ISO 8601 text, in the current time zone; a dash for None."""
    if not at:
        return NONE
    parsed = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
    local = timezone.localtime(parsed)
    today = timezone.localdate() == local.date()
    shown = (
        formats.date_format(local, "H:i:s") if today else f"{formats.date_format(local, 'SHORT_DATE_FORMAT')} {local:%H:%M:%S}"
    )
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', parsed.isoformat(), local.isoformat(" ", "milliseconds"), shown
    )


@register.simple_tag
def state(css: str, words: str) -> SafeString:
    """A state by icon, word and colour."""
    icon = ICONS.get(css, "·")
    return format_html('<span class="vis-state vis-{}"><span aria-hidden="true">{}</span> {}</span>', css, icon, words)


@register.simple_tag
def resource_url(resource: str) -> str:
    """The address of a resource's inspector page."""
    return reverse("admin:visibility_overview_resource") + "?" + urlencode({"name": resource})


@register.simple_tag
def resource_link(resource: str) -> SafeString:
    """A link to a resource's inspector page."""
    return format_html('<a class="vis-resource" href="{}">{}</a>', resource_url(resource), resource)


@register.filter
def evidence(value: Any) -> str:
    """A finding's evidence as text: numbers rounded, the rest as JSON."""
    if value is None:
        return NONE
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@register.filter
def event_name(event: Event) -> str | SafeString:
    """An event for a list: a long key or id is cut, and is whole in the title."""
    name = event.object_pk or event.external_id or ""
    if len(name) <= LONGEST_NAME:
        return str(event) or NONE
    short = f"{event.model or event.data_type} {event.action} {name[: LONGEST_NAME - 8]}…"
    return format_html('<span title="{}">{}</span>', str(event), " ".join(short.split()))


@register.filter
def lookup(mapping: dict[str, Any], key: str) -> Any:
    """`mapping[key]`, or None."""
    return mapping.get(key)


register.filter("decided", decided)


@register.filter
def outcome_word(code: str) -> str:
    """An event's outcome for people."""
    words = {
        "waiting": _("waiting"),
        "done": _("done"),
        "deferred": _("deferred"),
        "failed": _("failed"),
        "ignored": _("ignored"),
    }
    return words.get(code or "waiting", code)


@register.filter
def outcome_css(code: str) -> str:
    """The class that colours an event's outcome."""
    return {"done": "ok", "failed": "bad", "ignored": "none"}.get(code, "warn")


@register.filter
def kind_word(code: str) -> str:
    """The kind of a happening for people."""
    words = {
        "event": _("change"),
        "built": _("built"),
        "marked": _("marked"),
        "failed": _("failed"),
        "visible": _("visible"),
        "hidden": _("hidden"),
        "pending": _("waits"),
    }
    return words.get(code, code)
