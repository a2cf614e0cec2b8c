"""One view that knows nothing of the app."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"hello {request.user.is_authenticated}")


urlpatterns: list[Any] = [path("", hello)]
