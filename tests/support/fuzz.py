"""Frames as a broken or hostile client might send them: from noise to what is nearly right."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import strategies as st

OPS = ["watch", "unwatch", "state", "ping", "ack", "hello", "update", "", "WATCH", None, 7]
NAMES = [
    "counter:a",
    "counter:b",
    "price:x",
    "feed:1",
    "nope:1",
    "counter",
    "counter:",
    ":",
    "counter:a b",
    "counter:\ud800",
    "é:é",
]
KEYS = ["op", "id", "resources", "since", "visible", "have", "resource", "version", "more"]

_scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20) | st.sampled_from(NAMES)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8) | st.sampled_from(NAMES), inner, max_size=5),
)
_objects = st.dictionaries(st.sampled_from(KEYS), _values | st.sampled_from(OPS)).map(json.dumps)
_nearly = st.fixed_dictionaries(
    {"op": st.sampled_from(OPS)},
    optional={
        "id": st.integers() | st.text(max_size=70) | _values,
        "resources": st.lists(st.sampled_from(NAMES), max_size=5) | _values,
        "since": st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**53), max_size=3) | _values,
        "have": st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**53), max_size=3) | _values,
        "visible": st.booleans() | _values,
        "resource": st.sampled_from(NAMES) | _values,
        "version": st.integers(0, 2**53) | _values,
    },
).map(json.dumps)


def frames_of_any_kind() -> st.SearchStrategy[str]:
    """Text of every kind: noise, JSON of other shapes, operations with wrong parts, and good ones."""
    return st.text(max_size=100) | _values.map(json.dumps) | _objects | _nearly


def _scalar(rng: random.Random) -> Any:
    many: list[Any] = [None, True, False, 0, -1, 2**53, 1.5, "", "x" * 70, [], {}, ["counter:a"], {"counter:a": 1}, float("nan")]
    return rng.choice([*many, *NAMES])


def random_frame(rng: random.Random) -> str | bytes:
    """One frame, fast: for loops of a hundred thousand. One in five is right in every part."""
    dice = rng.random()
    names = rng.sample(NAMES[:3], rng.randint(0, 3))
    if dice < 0.2:
        good: list[dict[str, Any]] = [
            {
                "op": "watch",
                "id": rng.randint(0, 99),
                "resources": names,
                "since": dict.fromkeys(names, rng.randint(0, 2**53 - 1)),
            },
            {"op": "unwatch", "id": rng.randint(0, 99), "resources": names},
            {"op": "state", "visible": rng.random() < 0.5},
            {"op": "ping", "have": dict.fromkeys(names, rng.randint(0, 9))},
            {"op": "ack", "resource": rng.choice(NAMES), "version": rng.randint(0, 9)},
        ]
        return json.dumps(rng.choice(good))
    if dice < 0.6:
        frame = {key: _scalar(rng) for key in rng.sample(KEYS, rng.randint(1, 5))}
        frame["op"] = rng.choice(OPS)
        return json.dumps(frame)
    if dice < 0.7:
        return bytes(rng.randrange(256) for _ in range(rng.randint(0, 30)))
    if dice < 0.85:
        text = json.dumps({"op": rng.choice(OPS), "resources": names})
        cut = rng.randint(0, len(text))
        return text[:cut] + chr(rng.randrange(1, 0xD7FF)) + text[cut + rng.randint(0, 2) :]
    return "".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(rng.randint(0, 40)))
