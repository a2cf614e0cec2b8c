from __future__ import annotations

from typing import Any

from django.http import HttpRequest


def shell(request: HttpRequest) -> dict[str, Any]:
    """What every page's frame shows: the people one may log in as."""
    return {}
