"""The truth about changes: the event log (also the outbox), dirty marks, versions, SLOs and rollups."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


def event_id() -> uuid.UUID:
    """A UUIDv7 (RFC 9562): time-ordered, so that the log's index grows at its end."""
    stamp = time.time_ns() // 1_000_000
    rand = int.from_bytes(os.urandom(10), "big")
    value = (stamp & (1 << 48) - 1) << 80 | 7 << 76 | (rand >> 62 & 0xFFF) << 64 | 2 << 62 | rand & (1 << 62) - 1
    return uuid.UUID(int=value)


class EventManager(models.Manager["Event"]):
    """Rows are held back until just before the commit; whoever asks for them in the same transaction sees them all the same."""

    # Set by `visibility.events.commit`: whoever holds rows back knows the models, not the other way round.
    write_held: ClassVar[staticmethod[[], None]] = staticmethod(lambda: None)

    def get_queryset(self) -> models.QuerySet[Event]:
        self.write_held()
        return super().get_queryset()


class Event(models.Model):
    """One change, written in the change's own transaction; processed once the gate has decided.

    `decision` is `{data_type: {"hot": n, "cold": n, "reasons": {reason: n}}}` of the gate pass that took it.
    `body` keeps what a later process needs to redo the gate: emitted keys and scope, or a deleted row's fields.
    """

    class Source(models.TextChoices):
        MODEL = "model", _("model change")
        EMIT = "emit", _("emitted")
        TOUCH = "touch", _("touched")

    class Outcome(models.TextChoices):
        WAITING = "", _("waiting")
        DONE = "done", _("done")
        DEFERRED = "deferred", _("deferred: Redis away")
        FAILED = "failed", _("failed")
        IGNORED = "ignored", _("ignored: older version")

    id = models.UUIDField(_("event"), primary_key=True, default=event_id, editable=False)
    source = models.CharField(_("source"), max_length=10, choices=Source.choices)
    data_type = models.CharField(_("data types"), max_length=255, blank=True)
    model = models.CharField(_("model"), max_length=100, blank=True)
    object_pk = models.CharField(_("object"), max_length=255, blank=True)
    action = models.CharField(_("action"), max_length=10, blank=True)
    using = models.CharField(_("database"), max_length=64, blank=True)
    external_id = models.CharField(_("external id"), max_length=200, null=True, blank=True)  # noqa: DJ001
    version = models.BigIntegerField(_("version"), null=True, blank=True)
    tenant = models.CharField(_("tenant"), max_length=100, blank=True)
    body = models.JSONField(_("body"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"))
    processed_at = models.DateTimeField(_("processed"), null=True, blank=True)
    outcome = models.CharField(_("outcome"), max_length=10, choices=Outcome.choices, default=Outcome.WAITING, blank=True)
    attempts = models.PositiveSmallIntegerField(_("attempts"), default=0)
    retry_at = models.DateTimeField(_("not before"), null=True, blank=True)
    decision = models.JSONField(_("decision"), null=True, blank=True)
    error = models.TextField(_("error"), blank=True)
    took_ms = models.FloatField(_("took (ms)"), null=True, blank=True)

    objects = EventManager()

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("processed events")
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["data_type", "external_id"], name="visibility_event_external"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["processed_at", "created_at"], name="visibility_event_outbox"),
        ]

    def __str__(self) -> str:
        return f"{self.model or self.data_type} {self.action} {self.object_pk or self.external_id or ''}".strip()

    @property
    def verdicts(self) -> dict[str, dict[str, Any]]:
        """The decision on this event's own data types. One gate pass takes a transaction's events together and its decision is
        stored with each of them, so the counts are those of all its events of a type."""
        found = {name: one for name, one in (self.decision or {}).items() if isinstance(one, dict)}
        # "*": more types than the column holds.
        own = found if self.data_type in ("", "*") else self.data_type.split(",")
        return {name: one for name, one in found.items() if name in own}


class Mark(models.Model):
    """A count that only grows, as a hybrid clock: `max(last + 1, microseconds since 2024)`."""

    data_type = models.CharField(_("data type"), max_length=50)
    mark = models.BigIntegerField(_("mark"))
    changes = models.PositiveIntegerField(_("changes"), default=0)
    last_at = models.DateTimeField(_("last change"))

    class Meta:
        abstract = True


class DirtyFlag(Mark):
    """This resource changed since its last snapshot, `changes` times, first at `first_at`; clean where that is null."""

    key = models.CharField(_("key"), max_length=200)
    first_at = models.DateTimeField(_("dirty since"), null=True, blank=True)
    failures = models.PositiveIntegerField(_("failures"), default=0)
    not_before = models.DateTimeField(_("not before"), null=True, blank=True)
    quarantined_at = models.DateTimeField(_("quarantined"), null=True, blank=True)
    last_error = models.TextField(_("last error"), blank=True)

    class Meta:
        verbose_name = _("dirty flag")
        verbose_name_plural = _("dirty flags")
        constraints: ClassVar = [models.UniqueConstraint(fields=["data_type", "key"], name="visibility_dirty_resource")]
        indexes: ClassVar = [
            models.Index(fields=["data_type", "first_at", "key"], name="visibility_dirty_oldest"),
            models.Index(fields=["quarantined_at"], name="visibility_dirty_quarantine"),
        ]

    def __str__(self) -> str:
        return f"{self.data_type}:{self.key}"


class ScopeMark(Mark):
    """A source changed: every resource that depends on this scope is stale unless its snapshot was stamped since."""

    scope = models.CharField(_("scope"), max_length=200)

    class Meta:
        verbose_name = _("scope mark")
        verbose_name_plural = _("scope marks")
        constraints: ClassVar = [models.UniqueConstraint(fields=["data_type", "scope"], name="visibility_scope_mark")]
        indexes: ClassVar = [models.Index(fields=["last_at"], name="visibility_scope_last")]

    def __str__(self) -> str:
        return f"{self.data_type}/{self.scope}"


class Summary(models.Model):
    """What a hidden resource missed, by kind: "15 new". Emptied when it is shown."""

    data_type = models.CharField(_("data type"), max_length=50)
    key = models.CharField(_("key"), max_length=200)
    kind = models.CharField(_("kind"), max_length=50, blank=True)
    count = models.PositiveIntegerField(_("count"))
    first_at = models.DateTimeField(_("first change"))
    last_at = models.DateTimeField(_("last change"))

    class Meta:
        verbose_name = _("summary")
        verbose_name_plural = _("summaries")
        constraints: ClassVar = [models.UniqueConstraint(fields=["data_type", "key", "kind"], name="visibility_summary_kind")]

    def __str__(self) -> str:
        return f"{self.data_type}:{self.key} {self.kind} × {self.count}"


class AppliedVersion(models.Model):
    """The newest external version applied to a resource; an older one is ignored."""

    data_type = models.CharField(_("data type"), max_length=50)
    key = models.CharField(_("key"), max_length=200)
    version = models.BigIntegerField(_("version"))
    updated_at = models.DateTimeField(_("updated"))

    class Meta:
        verbose_name = _("applied version")
        verbose_name_plural = _("applied versions")
        constraints: ClassVar = [models.UniqueConstraint(fields=["data_type", "key"], name="visibility_applied_resource")]
        indexes: ClassVar = [models.Index(fields=["updated_at"], name="visibility_applied_age")]

    def __str__(self) -> str:
        return f"{self.data_type}:{self.key} v{self.version}"


class NaturalKey(models.Model):
    """At most one record per parts and interval: the row that `visibility.once` inserts."""

    name = models.CharField(_("natural key"), max_length=255, primary_key=True)
    expires_at = models.DateTimeField(_("expires"), db_index=True)

    class Meta:
        verbose_name = _("natural key")
        verbose_name_plural = _("natural keys")

    def __str__(self) -> str:
        return self.name


class FreshnessSLO(models.Model):
    """The promise for one data type: the share `objective` of changes is shown within `seconds`, over `window` seconds."""

    data_type = models.CharField(_("data type"), max_length=50, unique=True)
    seconds = models.FloatField(_("target (s)"))
    objective = models.FloatField(_("objective"))
    window = models.PositiveIntegerField(_("window (s)"), default=86_400)
    edited = models.BooleanField(_("edited by hand"), default=False)

    class Meta:
        verbose_name = _("freshness promise")
        verbose_name_plural = _("freshness promises")
        ordering: ClassVar = ["data_type"]

    def __str__(self) -> str:
        return f"{self.data_type}: {self.objective:.2%} within {self.seconds:g} s"


class Rollup(models.Model):
    """One minute of one metric, carried over from Redis: a count, or a histogram of log-spaced buckets."""

    minute = models.DateTimeField(_("minute"))
    metric = models.CharField(_("metric"), max_length=60)
    data_type = models.CharField(_("data type"), max_length=50, blank=True)
    label = models.CharField(_("label"), max_length=50, blank=True)
    value = models.FloatField(_("value"), default=0)
    buckets = models.JSONField(_("buckets"), null=True, blank=True)

    class Meta:
        verbose_name = _("rollup")
        verbose_name_plural = _("rollups")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["metric", "data_type", "label", "minute"], name="visibility_rollup_minute"),
        ]
        indexes: ClassVar = [models.Index(fields=["minute"], name="visibility_rollup_age")]

    def __str__(self) -> str:
        return f"{self.metric} {self.data_type} {self.minute:%H:%M}"


class Overview(models.Model):
    """No table: the entry of the live pages in the admin, and what their permissions hang on."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions: ClassVar = [("drop_leases", "Can drop watches and presence")]
        verbose_name = _("overview")
        verbose_name_plural = _("overview")

    def __str__(self) -> str:
        return ""
