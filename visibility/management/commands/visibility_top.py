"""`visibility_top`: what goes on now, in a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from visibility import freshness
from visibility.conf import settings
from visibility.datatypes import registry
from visibility.doctor import engine
from visibility.exceptions import RedisAway
from visibility.insight import history
from visibility.insight.ledger import METRICS, ledger
from visibility.insight.reasons import span
from visibility.models import Event
from visibility.soft import levels, pages, upkeep

SPAN = 60.0
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
NONE = "–"
LANES = (-12, -10, 9, 7, 9, 8, 11, 9)
TYPES = (-12, 9, 8, 8, 8, 8, 8, 8, 8)
PROMISES = (-12, 9, 10, 10, 10, 10, 9, -9)


class Command(BaseCommand):
    help = "A live view: what is visible, lanes, promises, the last events."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="print one view and end")
        parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two views (default: 2)")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["once"]:
            self.stdout.write("\n".join(self._view()))
            return
        clear = CLEAR if self.stdout.isatty() else ""
        try:
            while True:
                self.stdout.write(clear + "\n".join([*self._view(), "", "Ctrl-C ends it."]))
                self.stdout.flush()
                time.sleep(max(0.2, options["interval"]))
        except KeyboardInterrupt:
            self.stdout.write("")

    def _view(self) -> Iterator[str]:
        now = timezone.now()
        yield self.style.MIGRATE_HEADING(f"visibility · {now:%Y-%m-%d %H:%M:%S %Z}")
        try:
            yield from self._soft()
        except RedisAway as error:
            yield self.style.ERROR(f"Redis is away: {error}")
        yield ""
        yield from self._types()
        yield ""
        yield from self._promises()
        yield ""
        yield from self._events()

    def _soft(self) -> Iterator[str]:
        silence = upkeep.silence()
        beat = self.style.ERROR("nobody maintains") if silence is None or silence > 30 else f"maintained {span(silence)} ago"
        yield f"{pages.people(limit=1).total} users online · {beat}"
        yield ""
        yield _row(LANES, "lane", "stage", "pending", "due", "claimed", "bound", "late", "workers")
        for name in settings.LANES:
            state, lane = levels.lane_state(name), settings.lane(name)
            workers = engine.workers(lane.queue)
            late, known = span(max(0.0, state.lag)), "?" if workers is None else workers
            line = _row(LANES, name, state.stage, state.pending, state.due, state.claimed, lane.bound, late, known)
            yield line if state.stage == "normal" and workers else self.style.WARNING(line)

    def _types(self) -> Iterator[str]:
        figures = history.read(METRICS, [SPAN])[SPAN]
        yield _row(TYPES, "last minute", "visible", "hot", "marked", "merged", "builds", "saved", "reads", "fresh")
        for one in ledger(figures, [data_type.name for data_type in registry]):
            reads = figures.total("reads", one.data_type)
            fresh = f"{figures.total('reads', one.data_type, 'fresh') / reads:.0%}" if reads else NONE
            try:
                visible: int | str = pages.crowd(one.data_type, 1).visible
            except RedisAway:
                visible = "?"
            yield _row(TYPES, one.data_type, visible, one.hot, one.marked, one.merged, one.made, one.saved, reads, fresh)

    def _promises(self) -> Iterator[str]:
        yield _row(PROMISES, "promise", "target", "p50", "p95", "p99", "attained", "budget", "  state")
        for found in freshness.report():
            cells = [NONE if value is None else span(value) for value in (found.p50, found.p95, found.p99)]
            attained = NONE if found.attained is None else f"{found.attained:.2%}"
            left = NONE if found.budget_left is None else f"{found.budget_left:.0%}"
            style = {"ok": self.style.SUCCESS, "warn": self.style.WARNING, "bad": self.style.ERROR}.get(found.state.css, str)
            line = _row(PROMISES[:-1], found.data_type, span(found.seconds), *cells, attained, left)
            yield f"{line}  {style(str(found.state.words))}"

    def _events(self) -> Iterator[str]:
        yield "last events"
        for event in Event.objects.order_by("-id").defer("body", "error")[:8]:
            hot, cold = (sum(int(one.get(way, 0)) for one in event.verdicts.values()) for way in ("hot", "cold"))
            at, outcome = timezone.localtime(event.created_at), event.outcome or "waiting"
            yield f"  {at:%H:%M:%S}  {str(event)[:48]:<48}  {outcome:<9} hot {hot}, cold {cold}"


def _row(widths: Sequence[int], *cells: Any) -> str:
    """Cells under each other: the first and those of a negative width to the left, numbers to the right."""
    parts = []
    for width, cell in zip(widths, cells, strict=True):
        text = str(cell)[: abs(width) - 1]
        parts.append(text.ljust(-width) if width < 0 else text.rjust(width))
    return "".join(parts).rstrip()
