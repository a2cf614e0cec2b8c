"""B10: what it costs to save a model that is watched for: 100 saves in one transaction, nobody watching, against plain saves.

The plain side saves with the package's receivers disconnected: the same model, the same transaction, the same commit. The
audience is a QuerySet with a scope, which the app's own `@on` method makes at each save; for comparison, the same as a function,
which makes it only if somebody watches. `floor_ratio` is of plain saves that call that method and do nothing else. The bar speaks
of PostgreSQL; SQLite, where a plain save is little but Python, is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete, pre_save

from tests.app.models import Follow, Post
from tests.app.visibility import Feed
from tests.benchmarks.harness import Part, by_turns
from tests.benchmarks.stage import Stage
from visibility.datatypes import Audience, Change, on, register, registry
from visibility.events import sources

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

    def asked() -> float:
        """Plain saves, and at each the app's own method alone; what it answers is kept to the end, as it has to be."""
        feed, kept = registry.get("feed"), []

        def ask(instance: Post, **_: Any) -> None:
            kept.append(feed.posts(Change(instance=instance, action="created", event_id="", using="default")))  # type: ignore[attr-defined]

        with without_receivers():
            post_save.connect(ask, sender=Post)
            return save()

    least = by_turns(asked, plain, stage.size.times(20), warm=3)
    turns = by_turns(save, plain, stage.size.times(40), warm=3, meter=stage.cpu)
    part = turns.cost("a save of a watched-for model", 2.2, "a plain save", saves=saves, floor_ratio=median(least.ratios))
    part.counts = stage.database == "postgres"
    yield part
    _as_function()
    turns = by_turns(save, plain, stage.size.times(20), warm=3, meter=stage.cpu)
    part = turns.cost("the same, its audience given as a function", 2.2, "a plain save", saves=saves)
    part.counts = False
    yield part


def _as_function() -> None:
    registry.unregister("feed")

    @register
    class Lazy(Feed):
        name = "feed"

        @on(Post)
        def posts(self, change: Change) -> Audience:
            author = change.instance.author_id  # type: ignore[attr-defined]
            return Audience(lambda: Follow.objects.filter(author=author).values_list("follower"), scope=f"author:{author}")

    sources.forget()
