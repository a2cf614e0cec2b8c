from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.urls import include, path


def icon(request: HttpRequest) -> HttpResponse:
    """Browsers ask for this by themselves, on pages that name no icon: the admin's."""
    return redirect(static("demo/icon.svg"), permanent=True)


urlpatterns = [
    path("admin/", admin.site.urls),
    path("favicon.ico", icon),
    path("", include("project.demo.urls")),
]
