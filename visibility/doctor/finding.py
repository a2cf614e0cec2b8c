"""One finding of the doctor: symptom, evidence, remedy, and how bad it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A symptom with what tells of it and what to do. `code` is a machine word, `evidence` is JSON-able."""

    code: str
    severity: str
    symptom: str
    remedy: str
    evidence: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
