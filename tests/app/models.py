"""Sources that the tests change: a follow graph with posts, rooms with messages, notices, prices, counters."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models


class Follow(models.Model):
    follower = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="follows")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="followers")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["author", "follower"], name="testapp_follow_pair")]
        indexes: ClassVar = [models.Index(fields=["follower", "author"], name="testapp_follow_of")]

    def __str__(self) -> str:
        return f"{self.follower_id} follows {self.author_id}"


class Post(models.Model):
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="posts")
    text = models.TextField()
    likes = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="liked", blank=True)

    def __str__(self) -> str:
        return self.text[:40]


class Room(models.Model):
    name = models.CharField(max_length=50)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="rooms")

    def __str__(self) -> str:
        return self.name


class Message(models.Model):
    room = models.ForeignKey(Room, models.CASCADE, related_name="messages")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE)
    text = models.TextField()

    def __str__(self) -> str:
        return self.text[:40]


class Read(models.Model):
    """How far a member has read in a room."""

    room = models.ForeignKey(Room, models.CASCADE)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE)
    last = models.BigIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["room", "user"], name="testapp_read_once")]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.room_id} up to {self.last}"


class Notice(models.Model):
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="notices")
    kind = models.CharField(max_length=20, default="comment")

    def __str__(self) -> str:
        return f"{self.kind} for {self.user_id}"


class Price(models.Model):
    """Written only by external events, through `apply`."""

    symbol = models.CharField(max_length=20, unique=True)
    cents = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.symbol} {self.cents}"


class Order(models.Model):
    customer = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="orders")
    status = models.CharField(max_length=20, default="new")

    def __str__(self) -> str:
        return f"order {self.pk} is {self.status}"


class Counter(models.Model):
    """The smallest source there is: `counter:<name>` must end up equal to `value`."""

    name = models.CharField(max_length=50, unique=True)
    value = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"
