"""The demo's source of truth: follows, posts, rooms, messages, notifications and tiles."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _, ngettext


class Follow(models.Model):
    """`follower` reads `author`. Everybody follows themselves, so that one's own posts stand in one's own feed."""

    follower = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="follows")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="followers")

    class Meta:
        verbose_name = _("follow")
        verbose_name_plural = _("follows")
        constraints: ClassVar = [models.UniqueConstraint(fields=["author", "follower"], name="demo_follow_once")]

    def __str__(self) -> str:
        return f"{self.follower_id} → {self.author_id}"


class Post(models.Model):
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="posts", db_index=False)
    text = models.CharField(_("text"), max_length=500)
    created_at = models.DateTimeField(_("created"), default=timezone.now)

    class Meta:
        verbose_name = _("post")
        verbose_name_plural = _("posts")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["author", "-id"], name="demo_post_author")]

    def __str__(self) -> str:
        return self.text[:60]


class Room(models.Model):
    name = models.CharField(_("name"), max_length=80)
    members: models.ManyToManyField[models.Model, Membership] = models.ManyToManyField(
        settings.AUTH_USER_MODEL, through="Membership", related_name="rooms", verbose_name=_("members")
    )

    class Meta:
        verbose_name = _("room")
        verbose_name_plural = _("rooms")
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("demo:room", args=[self.pk])


class Membership(models.Model):
    """One person in one room, and how far they have read: up to and with the message `read_up_to`."""

    room = models.ForeignKey(Room, models.CASCADE, related_name="memberships", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    read_up_to = models.BigIntegerField(_("read up to"), default=0)

    class Meta:
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")
        constraints: ClassVar = [models.UniqueConstraint(fields=["room", "user"], name="demo_membership_once")]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.room_id}"


class Message(models.Model):
    room = models.ForeignKey(Room, models.CASCADE, related_name="messages", db_index=False)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="messages")
    text = models.CharField(_("text"), max_length=1_000)
    created_at = models.DateTimeField(_("created"), default=timezone.now)

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["room", "-id"], name="demo_message_room")]

    def __str__(self) -> str:
        return self.text[:60]


class Notification(models.Model):
    """What one person is told, at most one row per natural key: recipient, kind, subject and interval.

    The same again within the interval raises `count`: "15 new messages in Kitchen", not 15 rows.
    """

    class Kind(models.TextChoices):
        FOLLOW = "follow", _("new followers")
        POST = "post", _("new posts")
        MESSAGE = "message", _("new messages")

    recipient = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="notifications", db_index=False)
    kind = models.CharField(_("kind"), max_length=20, choices=Kind.choices)
    subject = models.CharField(_("subject"), max_length=60, blank=True)
    interval = models.BigIntegerField(_("interval"))
    label = models.CharField(_("about"), max_length=120, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", verbose_name=_("last actor"), null=True, blank=True
    )
    count = models.PositiveIntegerField(_("count"), default=1)
    first_at = models.DateTimeField(_("first"), default=timezone.now)
    last_at = models.DateTimeField(_("last"), default=timezone.now)
    seen_at = models.DateTimeField(_("seen"), null=True, blank=True)

    class Meta:
        verbose_name = _("notification")
        verbose_name_plural = _("notifications")
        ordering: ClassVar = ["-last_at"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["recipient", "kind", "subject", "interval"], name="demo_notification_natural"),
        ]
        indexes: ClassVar = [models.Index(fields=["recipient", "seen_at", "-last_at"], name="demo_notification_list")]

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """One line for all that came together: "15 new messages in Kitchen"."""
        if self.kind == self.Kind.MESSAGE:
            one, many = "%(n)d new message in %(label)s", "%(n)d new messages in %(label)s"
        elif self.kind == self.Kind.FOLLOW:
            one, many = "%(n)d new follower", "%(n)d new followers"
        else:
            one, many = "%(n)d new post by %(label)s", "%(n)d new posts by %(label)s"
        return ngettext(one, many, self.count) % {"n": self.count, "label": self.label}


class Tile(models.Model):
    """One figure of the dashboard, written by events from outside the ORM: a price, an order's status, a sensor."""

    class Kind(models.TextChoices):
        PRICE = "price", _("price")
        ORDER = "order", _("order")
        SENSOR = "sensor", _("sensor")

    key = models.CharField(_("key"), max_length=40, primary_key=True)
    kind = models.CharField(_("kind"), max_length=10, choices=Kind.choices)
    label = models.CharField(_("label"), max_length=80)
    value = models.CharField(_("value"), max_length=40, blank=True)
    unit = models.CharField(_("unit"), max_length=20, blank=True)
    version = models.BigIntegerField(_("version"), default=0)
    updated_at = models.DateTimeField(_("updated"), null=True, blank=True)

    class Meta:
        verbose_name = _("tile")
        verbose_name_plural = _("tiles")
        ordering: ClassVar = ["kind", "key"]

    def __str__(self) -> str:
        return f"{self.label}: {self.value} {self.unit}".strip()
