"""Template tags: the script that watches for the browser, and the attributes of what it watches."""

from __future__ import annotations

import json
from typing import Any

from django import template
from django.forms.utils import flatatt
from django.template import Context
from django.templatetags.static import static
from django.urls import get_script_prefix
from django.utils.crypto import salted_hmac
from django.utils.html import format_html
from django.utils.safestring import SafeString

from visibility.datatypes import parse_resource

register = template.Library()

# Options of visibility.js by their names in a template; see the script's own header.
OPTIONS = {
    "auto": "auto",
    "linger": "linger",
    "margin": "margin",
    "retry_base": "retryBase",
    "retry_cap": "retryCap",
    "shared": "shared",
    "url": "url",
}


@register.simple_tag(takes_context=True)
def visibility_script(context: Context, **options: Any) -> SafeString:
    """The `<script type="module">` that connects the page and watches its elements with `data-visibility`.

    Options, all with defaults: `url` of the socket; `linger`, `retry_base`, `retry_cap` in seconds; `margin` as of an
    IntersectionObserver; `shared=False` for a socket of this tab alone; `auto=False` to connect by `connect()` only.

    Carries the CSP nonce that is in the context as `csp_nonce`, or on the request. Tabs share a socket only if the same user
    is logged in: with `user` in the context, the tag reads who that is, so the response varies by cookie.

    Raises:
        TypeError: an unknown option.
    """
    if unknown := sorted(options.keys() - OPTIONS.keys()):
        raise TypeError(f"visibility_script has no option {', '.join(unknown)}; it has {', '.join(OPTIONS)}")
    config = {"url": f"{get_script_prefix()}ws/visibility/", "scope": _scope(context.get("user"))}
    config |= {OPTIONS[name]: value for name, value in options.items()}
    attributes = {
        "type": "module",
        "src": static("visibility/visibility.js"),
        "data-visibility-connect": json.dumps(config),
        "nonce": _nonce(context),
    }
    return format_html("<script{}></script>", flatatt(attributes))


@register.simple_tag
def visibility_attrs(resource: Any, key: Any = None, snapshot: Any = None) -> SafeString:
    """`data-visibility`, and with a snapshot the version that the element shows.

    `{% visibility_attrs "feed:42" %}`, `{% visibility_attrs "feed" user.pk %}`,
    `{% visibility_attrs "feed" user.pk snapshot=feed %}`. Without a version the browser is sent what the page has already.

    Raises:
        BadResource, UnknownDataType: a resource that nobody could watch.
    """
    name = str(parse_resource(str(resource) if key is None else f"{resource}:{key}"))
    version = getattr(snapshot, "version", None)
    attribute = format_html('data-visibility="{}"', name)
    # As text: a number would get the locale's thousands separators.
    return format_html('{} data-visibility-version="{}"', attribute, str(version)) if version else attribute


def _nonce(context: Context) -> str | None:
    # Lazy nonces are false until they are used: only None means that there is none.
    nonce = context.get("csp_nonce")
    if nonce is None:
        nonce = getattr(context.get("request"), "csp_nonce", None)
    return None if nonce is None else str(nonce) or None


def _scope(user: Any) -> str:
    pk = getattr(user, "pk", None)
    return "" if pk is None else salted_hmac("visibility.scope", str(pk), algorithm="sha256").hexdigest()[:16]
