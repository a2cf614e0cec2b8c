"""`visibility_doctor`: what is wrong, how one can tell, what to do."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from visibility import doctor
from visibility.doctor import Finding

SIGNS = {doctor.CRITICAL: "✗", doctor.WARNING: "!", doctor.INFO: "·"}


class Command(BaseCommand):
    help = "Look for known symptoms on the live system. Exit code: 0 healthy, 1 warnings, 2 something is broken."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="findings as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        found = doctor.examine()
        if options["json"]:
            self.stdout.write(json.dumps([one.as_dict() for one in found], indent=2, default=str))
        else:
            for one in found:
                self._tell(one)
            self.stdout.write(self._summary(found))
        if code := doctor.exit_code(found):
            sys.exit(code)

    def _tell(self, one: Finding) -> None:
        style = {doctor.CRITICAL: self.style.ERROR, doctor.WARNING: self.style.WARNING}.get(one.severity, self.style.NOTICE)
        self.stdout.write(style(f"{SIGNS[one.severity]} {one.severity} [{one.code}] {one.symptom}"))
        for name, value in one.evidence.items():
            self.stdout.write(f"    {name}: {value if isinstance(value, str) else json.dumps(value, default=str)}")
        for line in textwrap.wrap(one.remedy, 100):
            self.stdout.write(f"  → {line}" if line == textwrap.wrap(one.remedy, 100)[0] else f"    {line}")

    def _summary(self, found: list[Finding]) -> str:
        if not found:
            return self.style.SUCCESS(f"{len(doctor.CHECKS)} checks: nothing to do.")
        n = {severity: sum(one.severity == severity for one in found) for severity in doctor.SEVERITIES}
        return f"{len(doctor.CHECKS)} checks: " + ", ".join(f"{count} {severity}" for severity, count in n.items() if count) + "."
