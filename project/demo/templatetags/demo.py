"""What the demo's templates need to show people, times and numbers."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import template
from django.contrib.auth.models import User
from django.utils import timezone

register = template.Library()
HUES = 8
PROMISES = {
    "badge": "1 to 3 s while watched; summed up while not",
    "feed": "3 s while watched; at the next request while not",
    "unread": "30 s; right when its room is opened",
    "room": "1 s while watched; at the next request while not",
    "tile": "1 s while watched; at the next request while not",
}


@register.filter
def initials(value: Any) -> str:
    """One or two letters for a person or a name."""
    name = (value.get_full_name() or value.get_username()) if isinstance(value, User) else str(value or "")
    words = [word for word in name.split() if word[0].isalnum()]
    return "".join(word[0] for word in (words[0], words[-1])[: len(words)]).upper() if words else ""


@register.filter
def hue(value: Any) -> int:
    """A colour number, always the same for one id."""
    return int(value or 0) % HUES


@register.filter
def ago(value: dt.datetime | None) -> str:
    """A short distance in time: "now", "4 min", "3 h", or the date."""
    if value is None:
        return ""
    seconds = (timezone.now() - value).total_seconds()
    if seconds < 60:
        return "now"
    if seconds < 3_600:
        return f"{int(seconds // 60)} min"
    return f"{int(seconds // 3_600)} h" if seconds < 86_400 else f"{value:%-d %b}"


@register.filter
def thousands(value: Any) -> str:
    return f"{int(value or 0):,}"


@register.filter
def percent_saved(work: dict[str, Any]) -> str:
    return f"{100 * work['saved'] / work['everybody']:.1f} %" if work.get("everybody") else "0.0 %"


@register.filter
def promise(data_type: str) -> str:
    return PROMISES.get(data_type, "")
