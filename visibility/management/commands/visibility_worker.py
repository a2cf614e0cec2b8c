"""`visibility_worker`: the workers of every lane as processes, with the maintenance loop."""

from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from visibility import workers


class Command(BaseCommand):
    help = (
        "Run RQ workers, one lane a process, and the maintenance loop. SIGTERM or Ctrl-C ends all of them: batches under way are "
        "finished or given back. A plain `rqworker QUEUE` works too."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--lane",
            action="append",
            default=[],
            metavar="NAME[=NUMBER]",
            help="How many workers for this lane; repeat it. Default: every lane of VISIBILITY['LANES'], with its `workers` (1).",
        )
        parser.add_argument("--worker-class", default=workers.SIMPLE, help="RQ worker class (default: %(default)s).")
        parser.add_argument("--no-maintenance", action="store_true", help="Leave the maintenance loop to visibility_maintain.")
        parser.add_argument(
            "--grace",
            type=float,
            default=10.0,
            help="Seconds for a batch to finish after SIGTERM, before its claims are given back.",
        )
        parser.add_argument("--child", default="", help="Used by the command itself: be the worker of this lane.")
        parser.add_argument("--parent", type=int, default=0, help="Used by the command itself: the process to end with.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["child"]:
            workers.end_with_parent(options["parent"])
            workers.work_lane(options["child"], options["worker_class"])
            return
        try:
            counts = workers.lane_counts(options["lane"])
        except ValueError as error:
            raise CommandError(str(error)) from error
        passed = [f"--{name}={options[name]}" for name in ("settings", "pythonpath") if options[name]]
        crew = workers.Crew(
            counts, options["worker_class"], grace=options["grace"], arguments=passed, maintenance=not options["no_maintenance"]
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: crew.stop.set())
        told = ", ".join(f"{lane} × {count}" for lane, count in counts.items())
        self.stdout.write(f"visibility workers: {told}; maintenance {'elsewhere' if options['no_maintenance'] else 'inside'}")
        crew.run()
        self.stdout.write("visibility workers: ended")
