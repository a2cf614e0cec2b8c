"""`visibility_shadow`: how much work the gate saves, or in shadow mode would save, against recomputing for everybody."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from visibility.datatypes import is_shadow, registry
from visibility.insight import history, metrics

NAMES = ("gate_hot", "gate_cold", "gate_dropped")


class Command(BaseCommand):
    """A scope's mark counts as one, however many resources it stands for; in shadow mode its audience is counted."""

    help = "Tell, per data type, how many recomputes the gate asks for (or would, in shadow mode) against one for everybody."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--minutes", type=int, default=60, help="how far to look back (default: 60)")
        parser.add_argument("--json", action="store_true", help="figures as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["minutes"] < 1:
            raise CommandError("--minutes must be at least 1")
        metrics.flush()
        seconds = options["minutes"] * 60
        figures = history.read(NAMES, [seconds])[seconds]
        rows = []
        for data_type in sorted(registry, key=lambda one: one.name):
            for shadow in (False, True):
                hot, cold, dropped = (
                    sum(
                        n
                        for (metric, kind, label), n in figures.counters.items()
                        if metric == name and kind == data_type.name and (label == "shadow") == shadow
                    )
                    for name in NAMES
                )
                everybody = hot + cold + dropped
                if everybody or shadow == is_shadow(data_type.name):
                    saved = 1 - hot / everybody if everybody else None
                    rows.append(
                        {"data_type": data_type.name, "shadow": shadow, "hot": hot, "everybody": everybody, "saved": saved}
                    )
        if options["json"]:
            self.stdout.write(json.dumps({"minutes": options["minutes"], "data_types": rows}, indent=2))
            return
        self.stdout.write(f"The last {options['minutes']} minutes:")
        for row in rows:
            verb = "would recompute" if row["shadow"] else "recomputed"
            share = "nothing happened" if row["saved"] is None else f"{row['saved']:.1%} saved"
            self.stdout.write(f"  {row['data_type']:<20} {verb} {row['hot']:>10,} of {row['everybody']:>10,}   {share}")
