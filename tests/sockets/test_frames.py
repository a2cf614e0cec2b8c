"""The protocol's frames as pure functions, with whatever a client may send."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.fuzz import frames_of_any_kind
from visibility.sockets import frames
from visibility.sockets.frames import MAX_SAFE, Ack, BadFrame, Ping, State, Unwatch, Watch

EXAMPLES = int(os.environ.get("VISIBILITY_FUZZ", "300"))


def code_of(text: str | None, limit: int = 200) -> str:
    with pytest.raises(BadFrame) as caught:
        frames.parse(text, limit)
    assert caught.value.detail
    return caught.value.code


def test_watch() -> None:
    frame = frames.parse('{"op":"watch","id":1,"resources":["counter:a","counter:a:b"],"since":{"counter:a":7}}')
    assert frame == Watch(1, ["counter:a", "counter:a:b"], {"counter:a": 7}, [])


def test_a_watch_keeps_what_is_good_and_names_what_is_not() -> None:
    frame = frames.parse(
        '{"op":"watch","id":"x","resources":["counter:a","nope:1","counter","counter:","counter:a b","counter:\\ud800"]}'
    )
    assert isinstance(frame, Watch)
    assert frame.resources == ["counter:a"]
    assert [(bad.code, bad.id, bad.resource) for bad in frame.refused] == [
        ("unknown_resource", "x", name) for name in ("nope:1", "counter", "counter:", "counter:a b", "counter:\ud800")
    ]


def test_a_resource_named_twice_counts_once() -> None:
    frame = frames.parse('{"op":"watch","resources":["counter:a","counter:a"]}')
    assert isinstance(frame, Watch)
    assert frame.resources == ["counter:a"]
    assert frame.id is None


def test_the_other_operations() -> None:
    assert frames.parse('{"op":"unwatch","id":2,"resources":["counter:a"]}') == Unwatch(2, ["counter:a"])
    assert frames.parse('{"op":"state","visible":false}') == State(False)
    assert frames.parse('{"op":"ping"}') == Ping({})
    assert frames.parse('{"op":"ping","have":{"counter:a":5}}') == Ping({"counter:a": 5})
    assert frames.parse('{"op":"ack","resource":"counter:a","version":5}') == Ack("counter:a", 5)


def test_keys_of_a_later_release_are_ignored() -> None:
    assert frames.parse('{"op":"ping","have":{},"new":[1]}') == Ping({})


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        "[]",
        "1",
        "null",
        "{}",
        '{"op":"dance"}',
        '{"op":["watch"]}',
        '{"op":"watch"}',
        '{"op":"watch","resources":"counter:a"}',
        '{"op":"watch","resources":[1]}',
        '{"op":"watch","resources":{"counter:a":1}}',
        '{"op":"watch","resources":[],"since":[]}',
        '{"op":"watch","resources":[],"since":{"counter:a":"1"}}',
        '{"op":"watch","resources":[],"since":{"counter:a":1.5}}',
        '{"op":"watch","resources":[],"since":{"counter:a":true}}',
        '{"op":"watch","resources":[],"since":{"counter:a":-1}}',
        f'{{"op":"watch","resources":[],"since":{{"counter:a":{MAX_SAFE + 1}}}}}',
        '{"op":"watch","id":{},"resources":[]}',
        '{"op":"watch","id":true,"resources":[]}',
        '{"op":"watch","id":1.5,"resources":[]}',
        '{"op":"state"}',
        '{"op":"state","visible":1}',
        '{"op":"ping","have":3}',
        '{"op":"ping","have":{"counter:a":NaN}}',
        '{"op":"ack"}',
        '{"op":"ack","resource":"counter:a","version":Infinity}',
        '{"op":"ping","have":{"a":' + "9" * 5000 + "}}",
        "[" * 100_000,
        '{"op":' * 100_000,
    ],
)
def test_a_bad_frame_is_named_so(text: str | None) -> None:
    assert code_of(text) == "bad_frame"


def test_a_bad_frame_is_answered_with_its_id() -> None:
    with pytest.raises(BadFrame) as caught:
        frames.parse('{"op":"watch","id":9,"resources":3}')
    assert caught.value.id == 9


def test_too_many_resources_in_one_frame() -> None:
    names = [f"counter:{n}" for n in range(4)]
    for frame in (
        {"op": "watch", "resources": names},
        {"op": "unwatch", "resources": names},
        {"op": "ping", "have": dict.fromkeys(names, 1)},
    ):
        assert code_of(json.dumps(frame), limit=3) == "limit"
    assert frames.parse(json.dumps({"op": "unwatch", "resources": names}), 4) == Unwatch(None, names)


def test_the_shapes_of_the_servers_frames() -> None:
    """Clients outside this repository depend on these, key by key."""
    shapes: list[tuple[str, dict[str, Any]]] = [
        (frames.hello("s", 20, {"a": 1}), {"op": "hello", "session": "s", "heartbeat": 20, "limits": {"a": 1}}),
        (
            frames.watched(1, {"feed:42": {"watchers": 3, "version": 7}}),
            {"op": "watched", "id": 1, "resources": {"feed:42": {"watchers": 3, "version": 7}}},
        ),
        (frames.watchers("feed:42", 2), {"op": "watchers", "resource": "feed:42", "count": 2}),
        (frames.pong({"feed:42": 7}), {"op": "pong", "versions": {"feed:42": 7}}),
        (frames.unwatched(2, ["feed:42"]), {"op": "unwatched", "id": 2, "resources": ["feed:42"]}),
        (frames.revoked("feed:42", "left"), {"op": "revoked", "resource": "feed:42", "reason": "left"}),
        (
            frames.error("limit", "too many", 1, "feed:42"),
            {"op": "error", "id": 1, "code": "limit", "detail": "too many", "resource": "feed:42"},
        ),
        (frames.error("bad_frame", "no"), {"op": "error", "id": None, "code": "bad_frame", "detail": "no", "resource": None}),
        (
            frames.update("feed:42", 7, b'{"a":"\xc3\xa9"}', "fresh", 1_500, 2_250),
            {
                "op": "update",
                "resource": "feed:42",
                "version": 7,
                "data": {"a": "é"},
                "state": "fresh",
                "event_at": 1.5,
                "built_at": 2.25,
                "missed": 0,
            },
        ),
    ]
    for text, shape in shapes:
        assert json.loads(text) == shape
        assert list(json.loads(text)) == list(shape)
    assert json.loads(frames.update("feed:42", 7, b"null", "stale", 0, 1, 3))["event_at"] is None


@given(st.text(), st.integers(0, MAX_SAFE))
def test_an_update_can_name_any_resource(name: str, version: int) -> None:
    frame = json.loads(frames.update(name, version, b"[]", "fresh", 1, 1))
    assert (frame["resource"], frame["version"], frame["data"]) == (name, version, [])


@settings(max_examples=EXAMPLES, deadline=None)
@given(frames_of_any_kind())
def test_whatever_comes_is_a_frame_or_a_bad_frame_that_can_be_answered(text: str) -> None:
    try:
        frame = frames.parse(text)
    except BadFrame as bad:
        answer = json.loads(frames.error(bad.code, bad.detail, bad.id, bad.resource))
        assert answer["code"] in ("bad_frame", "limit")
    else:
        assert isinstance(frame, (Watch, Unwatch, State, Ping, Ack))
        for bad in frame.refused if isinstance(frame, Watch) else []:
            assert json.loads(frames.error(bad.code, bad.detail, bad.id, bad.resource))["code"] == "unknown_resource"
