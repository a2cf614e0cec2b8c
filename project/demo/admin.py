from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from project.demo.models import Follow, Membership, Message, Notification, Post, Room, Tile

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline


@admin.register(Follow)
class FollowAdmin(ModelAdmin):
    list_display = ("follower", "author")
    list_select_related = ("follower", "author")
    autocomplete_fields = ("follower", "author")


@admin.register(Post)
class PostAdmin(ModelAdmin):
    list_display = ("text", "author", "created_at")
    list_select_related = ("author",)
    search_fields = ("text",)
    autocomplete_fields = ("author",)


class MembershipInline(TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


@admin.register(Room)
class RoomAdmin(ModelAdmin):
    list_display = ("name", "id")
    search_fields = ("name",)
    inlines = (MembershipInline,)


@admin.register(Message)
class MessageAdmin(ModelAdmin):
    list_display = ("text", "room", "author", "created_at")
    list_select_related = ("room", "author")
    search_fields = ("text",)
    autocomplete_fields = ("room", "author")


@admin.register(Notification)
class NotificationAdmin(ModelAdmin):
    list_display = ("kind", "label", "recipient", "count", "last_at", "seen_at")
    list_filter = ("kind",)
    list_select_related = ("recipient",)
    autocomplete_fields = ("recipient", "actor")


@admin.register(Tile)
class TileAdmin(ModelAdmin):
    list_display = ("label", "kind", "value", "unit", "version", "updated_at")
    list_filter = ("kind",)
