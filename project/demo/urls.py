from __future__ import annotations

from django.urls import path

from project.demo import views

app_name = "demo"
urlpatterns = [
    path("", views.home, name="home"),
    path("login-as/<int:pk>/", views.login_as, name="login-as"),
    path("logout/", views.leave, name="logout"),
    path("feed/", views.feed, name="feed"),
    path("follow/<int:pk>/", views.follow, name="follow"),
    path("rooms/", views.rooms, name="rooms"),
    path("rooms/<int:pk>/", views.room, name="room"),
    path("rooms/<int:pk>/read/", views.read, name="read"),
    path("rooms/<int:pk>/typing/", views.typing, name="typing"),
    path("rooms/<int:pk>/here/", views.here, name="here"),
    path("notifications/", views.notifications, name="notifications"),
    path("tiles/", views.tiles, name="tiles"),
    path("tiles/<slug:key>/change/", views.change_tile, name="change-tile"),
    path("work/", views.work, name="work"),
    path("work/story/", views.story, name="story"),
]
