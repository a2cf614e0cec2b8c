from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

import visibility
from project.demo import seed


def shell(request: HttpRequest) -> dict[str, Any]:
    """What every page's frame shows: the people one may log in as, and the counts in the navigation."""
    return {
        "people": SimpleLazyObject(_people),
        "badge": SimpleLazyObject(lambda: _own(request, "badge")),
        "unread": SimpleLazyObject(lambda: _own(request, "unread")),
    }


def _people() -> list[User]:
    return list(User.objects.filter(groups__name=seed.GROUP).order_by("id")) if settings.DEMO_LOGIN_AS else []


def _own(request: HttpRequest, data_type: str) -> Any:
    return visibility.read(data_type, request.user.pk) if request.user.is_authenticated else None
