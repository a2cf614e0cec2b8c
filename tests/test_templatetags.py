from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.template import Context, Template
from django.test import override_settings
from django.urls import set_script_prefix
from django.utils.functional import SimpleLazyObject

from visibility.exceptions import BadResource, UnknownDataType
from visibility.soft.snapshots import Snapshot


def render(source: str, **context: Any) -> str:
    return Template("{% load visibility %}" + source).render(Context(context))


def config(markup: str) -> dict[str, Any]:
    found = re.search(r'data-visibility-connect="([^"]*)"', markup)
    assert found, markup
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


def test_the_script_tag() -> None:
    markup = render("{% visibility_script %}")
    assert markup.startswith("<script ")
    assert ' type="module"' in markup
    assert ' src="/static/visibility/visibility.js"' in markup
    assert markup.endswith("></script>")
    assert "nonce" not in markup
    assert config(markup) == {"url": "/ws/visibility/", "scope": ""}


def test_the_nonce_of_the_context_or_of_the_request() -> None:
    class Lazy(SimpleLazyObject):
        def __bool__(self) -> bool:
            return False  # as Django's own until it is used

    assert 'nonce="abc"' in render("{% visibility_script %}", csp_nonce=Lazy(lambda: "abc"))
    request = HttpRequest()
    request.csp_nonce = 'x"y'  # type: ignore[attr-defined]
    assert 'nonce="x&quot;y"' in render("{% visibility_script %}", request=request)


def test_options_by_their_python_names() -> None:
    markup = render("{% visibility_script url='/x/' linger=2 retry_cap=10 shared=False auto=False margin='1px' %}")
    assert config(markup) == {
        "url": "/x/", "scope": "", "linger": 2, "retryCap": 10, "shared": False, "auto": False, "margin": "1px",
    }  # fmt: skip
    with pytest.raises(TypeError, match="no option lnger; it has auto"):
        render("{% visibility_script lnger=2 %}")


def test_every_option_is_one_of_the_script() -> None:
    from tests.browser.double import SCRIPT
    from visibility.templatetags.visibility import OPTIONS

    found = re.search(r"const DEFAULTS = \{(.*?)\};", SCRIPT.read_text(), re.DOTALL)
    assert found
    assert set(re.findall(r"(\w+):", found[1])) == {*OPTIONS.values(), "scope"}


def test_another_user_is_another_scope() -> None:
    ann, bob = (config(render("{% visibility_script %}", user=User(pk=pk)))["scope"] for pk in (1, 2))
    assert ann and bob and ann != bob
    assert config(render("{% visibility_script %}", user=AnonymousUser()))["scope"] == ""


def test_below_a_prefix() -> None:
    set_script_prefix("/app/")
    try:
        assert config(render("{% visibility_script %}"))["url"] == "/app/ws/visibility/"
    finally:
        set_script_prefix("/")


def test_attributes() -> None:
    assert render("{% visibility_attrs 'feed:42' %}") == 'data-visibility="feed:42"'
    assert render("{% visibility_attrs 'feed' pk %}", pk=42) == 'data-visibility="feed:42"'
    assert render("{% visibility_attrs 'feed' '<é>' %}") == 'data-visibility="feed:&lt;é&gt;"'


def test_the_version_of_a_snapshot_is_a_plain_number() -> None:
    snapshot = Snapshot("feed:42", 1234567, b"null", "fresh", 0, 0)
    with override_settings(USE_THOUSAND_SEPARATOR=True, LANGUAGE_CODE="de"):
        markup = render("{% visibility_attrs 'feed' 42 snapshot=snapshot %}", snapshot=snapshot)
    assert markup == 'data-visibility="feed:42" data-visibility-version="1234567"'
    assert render("{% visibility_attrs 'feed' 42 snapshot=snapshot %}", snapshot=None) == 'data-visibility="feed:42"'


def test_a_resource_that_nobody_can_watch_fails_the_page() -> None:
    with pytest.raises(UnknownDataType):
        render("{% visibility_attrs 'nothing_of_this_name:1' %}")
    with pytest.raises(BadResource):
        render("{% visibility_attrs 'feed' 'a b' %}")
