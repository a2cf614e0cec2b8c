"""`visibility_maintain`: the maintenance loop alone, or every duty once."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from visibility import maintain


class Command(BaseCommand):
    help = (
        "Run the maintenance loop: wake lanes, promote, announce who left, re-drive the outbox, carry metrics over, prune. "
        "Several at once do no harm; visibility_worker has it inside."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="Do every duty once and exit; 1 if one of them failed.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["once"]:
            done = maintain.tick()
            for name, count in done.items():
                self.stdout.write(f"{name}: {'failed' if count is None else count}")
            if None in done.values():
                raise SystemExit(1)
            return
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        self.stdout.write("visibility maintenance: running")
        maintain.loop(stop)
        self.stdout.write("visibility maintenance: ended")
