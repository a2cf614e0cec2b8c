"""Pages for the browser: `/page/?watch=counter:a&watch=counter:b&apart=1` shows two elements, a screen apart."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template import RequestContext, Template
from django.urls import path
from django.utils.crypto import get_random_string
from django.views.static import serve

PAGE = Template(
    """<!doctype html>{% load visibility %}<title>page</title><link rel="icon" href="data:,">
{% visibility_script linger=0.2 retry_base=0.1 retry_cap=0.5 %}
<script nonce="{{ csp_nonce }}">
  addEventListener("visibility:update", ({ target, detail }) => {
    if (target !== document.body) target.textContent = JSON.stringify(detail.data);
  }, true);
</script>
<body>{% for resource in resources %}
<p id="e{{ forloop.counter0 }}" {% visibility_attrs resource %}></p>{% if apart %}{{ gap }}{% endif %}{% endfor %}</body>"""
)


def page(request: HttpRequest) -> HttpResponse:
    nonce = get_random_string(16)
    context = {
        "csp_nonce": nonce,
        "resources": request.GET.getlist("watch"),
        "apart": "apart" in request.GET,
        "gap": Template("<br>" * 400).render(RequestContext(request)),
    }
    response = HttpResponse(PAGE.render(RequestContext(request, context)))
    response["Content-Security-Policy"] = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; worker-src 'self'; connect-src 'self'; img-src data:"
    )
    return response


urlpatterns = [
    path("page/", page),
    path("static/<path:path>", serve, {"document_root": settings.STATIC_ROOT}),
]
