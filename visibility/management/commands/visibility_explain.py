"""`visibility_explain RESOURCE`: why it is hot or cold."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import translation

from visibility.exceptions import BadResource, UnknownDataType
from visibility.explain import Explanation, explain


class Command(BaseCommand):
    help = "Why a resource is hot or cold: leases, pending, lock, snapshot, marks, last events."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("resource", help="for example feed:42")
        parser.add_argument("--json", action="store_true", help="everything, as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with translation.override("en" if options["json"] else translation.get_language() or "en"):
                found = explain(options["resource"])
        except (BadResource, UnknownDataType) as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(found, indent=2))
            return
        self._tell(found)

    def _tell(self, found: Explanation) -> None:
        style = {"hot": self.style.SUCCESS, "cold": self.style.NOTICE}.get(found["state"], self.style.WARNING)
        self.stdout.write(style(f"{found['resource']}: {found['state']}"))
        for sentence in found["why"]:
            self.stdout.write(f"  {sentence}")
        if found["leases"]["members"]:
            self.stdout.write("leases")
            for one in found["leases"]["members"]:
                who = one["holder"] or f"{one['user'] or 'anonymous'}, session {one['session']}"
                self.stdout.write(f"  {one['kind']:<10} {who}")
        if found["marks"]["scopes"]:
            self.stdout.write("scopes")
            for scope in found["marks"]["scopes"]:
                self.stdout.write(f"  {scope['last_at']} {scope['scope']} × {scope['changes']}")
        if found["timeline"]:
            self.stdout.write("time line")
            for happening in found["timeline"]:
                self.stdout.write(f"  {happening['at']} {happening['kind']:<8} {happening['text']}")
