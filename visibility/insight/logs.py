"""Structured logging as receivers of this app's own signals, and `built`; the notes of `trail` and the gate's times come along.

Loggers `visibility.gate`, `.build`, `.presence`, `.lane` and `.slo`; every record carries its figures as attributes
(`extra`), named in `FIELDS`, so that a JSON formatter writes them as they are. `connect()` runs once from `AppConfig.ready`;
what a receiver needs of Redis is imported when it is called.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from visibility import signals

if TYPE_CHECKING:
    from visibility.soft.snapshots import Stored

FIELDS = (
    "data_type",
    "resource",
    "version",
    "seconds",
    "event_ids",
    "decision",
    "lane",
    "stage",
    "state",
    "burn_rate",
    "attained",
    "user_id",
)
log_gate = logging.getLogger("visibility.gate")
log_build = logging.getLogger("visibility.build")
log_presence = logging.getLogger("visibility.presence")
log_lane = logging.getLogger("visibility.lane")
log_slo = logging.getLogger("visibility.slo")


def on_visible(sender: str, resource: str, **kwargs: Any) -> None:
    from visibility.insight import trail

    trail.note(str(resource), "visible")
    log_presence.debug("%s became visible", resource, extra={"data_type": sender, "resource": str(resource)})


def on_hidden(sender: str, resource: str, **kwargs: Any) -> None:
    from visibility.insight import trail

    trail.note(str(resource), "hidden")
    log_presence.debug("%s became hidden", resource, extra={"data_type": sender, "resource": str(resource)})


def built(data_type: str, rows: Sequence[tuple[str, Stored]], seconds: float) -> None:
    """A batch was built: each resource's snapshot, and what all took. Called, not sent as a signal: that is one per resource."""
    from visibility.insight import metrics, trail

    noted = rows[: trail.room()]
    for resource, one in noted:
        trail.note(resource, "built", at=one.built_ms / 1000, version=one.version, seconds=one.cost_ms / 1000)
    metrics.count("notes_dropped", len(rows) - len(noted))
    if log_build.isEnabledFor(logging.DEBUG):
        for resource, one in rows:
            extra = {"data_type": data_type, "resource": resource, "version": one.version, "seconds": seconds}
            log_build.debug("%s built, version %s, in %.3f s", resource, one.version, seconds, extra=extra)


def on_event(
    sender: str,
    event_ids: Sequence[Any],
    decision: dict[str, Any] | None,
    seconds: float | None,
    error: BaseException | str | None = None,
    **kwargs: Any,
) -> None:
    from visibility.insight import metrics

    if seconds is not None:
        metrics.observe("gate_seconds", seconds)
    ids = [str(one) for one in event_ids]
    extra = {"event_ids": ids, "decision": decision, "seconds": seconds}
    if error:
        log_gate.error("event %s failed: %s", ", ".join(ids[:5]), error, extra=extra)
    elif log_gate.isEnabledFor(logging.DEBUG):
        log_gate.debug("event %s decided: %s", ", ".join(ids[:5]), decision, extra=extra)


def on_online(sender: str, user_id: Any, **kwargs: Any) -> None:
    log_presence.debug("user %s is online", user_id, extra={"user_id": str(user_id)})


def on_offline(sender: str, user_id: Any, **kwargs: Any) -> None:
    log_presence.debug("user %s is offline", user_id, extra={"user_id": str(user_id)})


def on_pressure(sender: str, stage: Any, previous: Any, **kwargs: Any) -> None:
    log_lane.warning("lane %s: %s → %s", sender, previous, stage, extra={"lane": sender, "stage": str(stage)})


def on_slo(sender: str, state: str, burn_rate: float, attained: float | None, **kwargs: Any) -> None:
    level = logging.ERROR if state in ("burning_fast", "missed") else logging.WARNING if state == "burning" else logging.INFO
    shown = "no data" if attained is None else f"{attained:.2%}"
    extra = {"data_type": sender, "state": state, "burn_rate": burn_rate, "attained": attained}
    log_slo.log(level, "freshness of %s is %s: attained %s, burn rate %.1f", sender, state, shown, burn_rate, extra=extra)


RECEIVERS = (
    (signals.became_visible, on_visible),
    (signals.became_hidden, on_hidden),
    (signals.event_processed, on_event),
    (signals.user_online, on_online),
    (signals.user_offline, on_offline),
    (signals.pressure_changed, on_pressure),
    (signals.slo_alert, on_slo),
)


def connect() -> None:
    """Attach the receivers; harmless when repeated."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, dispatch_uid=f"visibility.insight.logs.{receiver.__name__}")


def disconnect() -> None:
    """Detach them; for a host that logs by receivers of its own."""
    for signal, receiver in RECEIVERS:
        signal.disconnect(receiver, dispatch_uid=f"visibility.insight.logs.{receiver.__name__}")
