"""B10: what it costs to save a model that is watched for: 100 saves in one transaction, nobody watching, against plain saves.

The plain side saves with the package's receivers disconnected: the same model, the same transaction, the same commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete, pre_save

from tests.app.models import Post
from tests.benchmarks.harness import Part, by_turns
from tests.benchmarks.stage import Stage

SAVES = 100
SIGNALS = (pre_save, post_save, pre_delete, post_delete, m2m_changed)


@contextmanager
def without_receivers() -> Iterator[None]:
    """No model signal has a receiver inside this block."""
    before = [signal.receivers for signal in SIGNALS]
    for signal in SIGNALS:
        signal.receivers = []
        signal.sender_receivers_cache.clear()
    try:
        yield
    finally:
        for signal, receivers in zip(SIGNALS, before, strict=True):
            signal.receivers = receivers
            signal.sender_receivers_cache.clear()


def measure(stage: Stage) -> Iterator[Part]:
    """Seconds per save, gate and commit included."""
    author: Any = User.objects.create(username="author")
    saves = stage.size.n(SAVES, 5)

    def save() -> float:
        begun = time.perf_counter()
        with transaction.atomic():
            for _ in range(saves):
                Post(author=author, text="x").save()
        return (time.perf_counter() - begun) / saves

    def plain() -> float:
        with without_receivers():
            return save()

    turns = by_turns(save, plain, stage.size.times(40), warm=3, meter=stage.cpu)
    yield turns.cost("a save of a watched-for model", 2.2, "a plain save", saves=saves)
