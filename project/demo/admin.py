from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin

from project.demo.models import Follow, Membership, Message, Notification, Post, Room, Tile

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline


@admin.register(Follow)
class FollowAdmin(ModelAdmin):
    list_display: ClassVar = ["follower", "author"]
    list_select_related: ClassVar = ["follower", "author"]
    autocomplete_fields: ClassVar = ["follower", "author"]


@admin.register(Post)
class PostAdmin(ModelAdmin):
    list_display: ClassVar = ["text", "author", "created_at"]
    list_select_related: ClassVar = ["author"]
    search_fields: ClassVar = ["text"]
    autocomplete_fields: ClassVar = ["author"]


class MembershipInline(TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields: ClassVar = ["user"]


@admin.register(Room)
class RoomAdmin(ModelAdmin):
    list_display: ClassVar = ["name", "id"]
    search_fields: ClassVar = ["name"]
    inlines: ClassVar = [MembershipInline]


@admin.register(Message)
class MessageAdmin(ModelAdmin):
    list_display: ClassVar = ["text", "room", "author", "created_at"]
    list_select_related: ClassVar = ["room", "author"]
    search_fields: ClassVar = ["text"]
    autocomplete_fields: ClassVar = ["room", "author"]


@admin.register(Notification)
class NotificationAdmin(ModelAdmin):
    list_display: ClassVar = ["kind", "label", "recipient", "count", "last_at", "seen_at"]
    list_filter: ClassVar = ["kind"]
    list_select_related: ClassVar = ["recipient"]
    autocomplete_fields: ClassVar = ["recipient", "actor"]


@admin.register(Tile)
class TileAdmin(ModelAdmin):
    list_display: ClassVar = ["label", "kind", "value", "unit", "version", "updated_at"]
    list_filter: ClassVar = ["kind"]
