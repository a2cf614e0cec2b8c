"""One header: nothing but the project's own files runs or styles a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "worker-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@sync_and_async_middleware
def content_security_policy(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Send a Content-Security-Policy with every response that has none of its own."""
    if iscoroutinefunction(get_response):

        async def later(request: HttpRequest) -> HttpResponseBase:
            answer: Awaitable[HttpResponseBase] = get_response(request)
            response = await answer
            response.headers.setdefault("Content-Security-Policy", POLICY)
            return response

        return later

    def now(request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return now
