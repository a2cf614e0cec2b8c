"""One header: nothing but the project's own files runs or styles a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

TEMPLATE = (
    "default-src 'none'; script-src 'self'{inline}; style-src 'self'{inline}; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
POLICY = TEMPLATE.format(inline="")
# django-rq's pages carry styles and scripts inside the page.
INLINE = TEMPLATE.format(inline=" 'unsafe-inline'")


def policy_for(path: str) -> str:
    return INLINE if path.startswith("/admin/django_rq/") else POLICY


@sync_and_async_middleware
def content_security_policy(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Send a Content-Security-Policy with every response that has none of its own."""
    if iscoroutinefunction(get_response):

        async def later(request: HttpRequest) -> HttpResponseBase:
            answer: Awaitable[HttpResponseBase] = get_response(request)
            response = await answer
            response.headers.setdefault("Content-Security-Policy", policy_for(request.path))
            return response

        return later

    def now(request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = get_response(request)
        response.headers.setdefault("Content-Security-Policy", policy_for(request.path))
        return response

    return now
