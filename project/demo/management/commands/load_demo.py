"""`manage.py load_demo`: tables, people, rooms, tiles and the administrator; the last line is JSON for `demo`."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from project.demo import seed


class Command(BaseCommand):
    help = "Migrate the database and fill it with the demo's people, rooms and tiles. Running it again adds nothing."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--crowd", type=int, default=2_000, help="silent readers of the Evening Post (default: 2000)")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        loaded = seed.load(options["crowd"])
        name, password = seed.superuser(settings.DEMO_DIR / "admin-password")
        self.stdout.write(json.dumps({"loaded": loaded, "superuser": name, "password": password}))
