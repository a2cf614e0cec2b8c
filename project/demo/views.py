"""The demo's pages. Each is right without JavaScript; the browser client keeps it so."""

from __future__ import annotations

import random
from typing import Any

from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.dateparse import parse_datetime
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

import visibility
from project.demo import seed, services, soft
from project.demo.forms import MessageForm, PostForm
from project.demo.models import Follow, Room, Tile

KINDS = list(Tile.Kind.values)


def current(data_type: str, key: Any) -> Any:
    """Data and version of a resource as it is now, with its times as datetimes for the template."""
    snapshot = visibility.read(data_type, key)
    data = snapshot.data
    for field in ("posts", "messages", "groups"):
        for row in data.get(field, ()):
            row["at"] = parse_datetime(row["at"])
    return {"data": data, "version": snapshot.version}


def person(request: HttpRequest) -> User:
    if not isinstance(request.user, User):
        raise Http404
    return request.user


def answer(request: HttpRequest, back: str, error: str = "", **more: Any) -> HttpResponse:
    """To a script a short JSON; to a browser without one the page it came from."""
    if request.headers.get("Accept", "").startswith("application/json"):
        return JsonResponse({"error": error, **more}, status=400 if error else 200)
    before = request.headers.get("Referer", "")
    return redirect(before if _own(request, before) else back)


def _own(request: HttpRequest, url: str) -> bool:
    return url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure())


def home(request: HttpRequest) -> HttpResponse:
    return render(request, "demo/home.html", {"page": "home"})


@require_POST
def login_as(request: HttpRequest, pk: int) -> HttpResponse:
    if not settings.DEMO_LOGIN_AS:
        raise Http404
    user = get_object_or_404(User, pk=pk, groups__name=seed.GROUP, is_staff=False, is_active=True)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    onward = request.POST.get("next", "")
    return redirect(onward if _own(request, onward) else "demo:feed")


@require_POST
def leave(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("demo:home")


@login_required
def feed(request: HttpRequest) -> HttpResponse:
    user = person(request)
    error, text = "", ""
    if request.method == "POST":
        form = PostForm(request.POST)
        if form.is_valid():
            services.post(user, form.cleaned_data["text"])
            return answer(request, "demo:feed")
        error, text = str(form.errors["text"][0]), request.POST.get("text", "")
        if request.headers.get("Accept", "").startswith("application/json"):
            return answer(request, "demo:feed", error)
    followed = set(Follow.objects.filter(follower=user).values_list("author_id", flat=True))
    people = [(p, p.pk in followed) for p in User.objects.filter(groups__name=seed.GROUP).exclude(pk=user.pk).order_by("id")]
    context = {"page": "feed", "feed": current("feed", user.pk), "people_to_follow": people, "error": error, "text": text}
    return render(request, "demo/feed.html", context, status=400 if error else 200)


@login_required
@require_POST
def follow(request: HttpRequest, pk: int) -> HttpResponse:
    author = get_object_or_404(User, pk=pk, groups__name=seed.GROUP)
    on = request.POST.get("on") == "1"
    services.follow(person(request), author, on=on)
    return answer(request, "demo:feed", on=on)


@login_required
def rooms(request: HttpRequest) -> HttpResponse:
    user = person(request)
    counts = visibility.read("unread", user.pk)
    rooms = Room.objects.filter(members=user).order_by("id")
    own = [(room, counts.data["rooms"].get(str(room.pk), 0)) for room in rooms]
    return render(request, "demo/rooms.html", {"page": "rooms", "rooms": own, "counts": counts})


def own_room(request: HttpRequest, pk: int) -> Room:
    return get_object_or_404(Room, pk=pk, members=person(request))


@login_required
def room(request: HttpRequest, pk: int) -> HttpResponse:
    user, own = person(request), own_room(request, pk)
    error, text = "", ""
    if request.method == "POST":
        form = MessageForm(request.POST)
        if form.is_valid():
            services.say(user, own, form.cleaned_data["text"])
            soft.type_in(own.pk, user.pk, still=False)
            visibility.emit("typing", keys=[own.pk])
            return answer(request, own.get_absolute_url())
        error, text = str(form.errors["text"][0]), request.POST.get("text", "")
        if request.headers.get("Accept", "").startswith("application/json"):
            return answer(request, own.get_absolute_url(), error)
    services.open_room(user, own)
    context = {
        "page": "rooms",
        "room": own,
        "snapshot": current("room", pk),
        "here": current("here", pk)["data"]["people"],
        "error": error,
        "text": text,
    }
    return render(request, "demo/room.html", context, status=400 if error else 200)


@login_required
@require_POST
def read(request: HttpRequest, pk: int) -> HttpResponse:
    services.open_room(person(request), own_room(request, pk))
    return HttpResponse(status=204)


@login_required
@require_POST
def typing(request: HttpRequest, pk: int) -> HttpResponse:
    own = own_room(request, pk)
    soft.type_in(own.pk, person(request).pk, still=request.POST.get("still") != "0")
    visibility.emit("typing", keys=[own.pk])
    return HttpResponse(status=204)


@login_required
@require_POST
def here(request: HttpRequest, pk: int) -> HttpResponse:
    visibility.emit("here", keys=[own_room(request, pk).pk])
    return HttpResponse(status=204)


@login_required
def notifications(request: HttpRequest) -> HttpResponse:
    user = person(request)
    if request.method == "POST":
        services.see(user)
        return answer(request, "demo:notifications")
    return render(request, "demo/notifications.html", {"page": "notifications", "badge_now": current("badge", user.pk)})


@login_required
def tiles(request: HttpRequest) -> HttpResponse:
    return render(
        request,
        "demo/tiles.html",
        {"page": "tiles", "tiles": sorted(Tile.objects.all(), key=lambda tile: (KINDS.index(tile.kind), tile.key))},
    )


@login_required
@require_POST
def change_tile(request: HttpRequest, key: str) -> HttpResponse:
    tile = get_object_or_404(Tile, pk=key)
    services.set_tile(tile, next_value(tile))
    return answer(request, "demo:tiles")


def next_value(tile: Tile) -> str:
    """A plausible next figure for a tile."""
    if tile.kind == Tile.Kind.ORDER:
        place = seed.ORDER.index(tile.value) if tile.value in seed.ORDER else -1
        return seed.ORDER[(place + 1) % len(seed.ORDER)]
    digits = len(tile.value.partition(".")[2])
    step = 0.004 if tile.kind == Tile.Kind.PRICE else 0.015
    value = float(tile.value or 20) * (1 + random.uniform(-step, step))
    if abs(value - float(tile.value or 20)) < 10**-digits:
        value = float(tile.value or 20) + random.choice((-1, 1)) * 10**-digits
    return f"{value:.{digits}f}"


@login_required
def work(request: HttpRequest) -> HttpResponse:
    news = User.objects.filter(username=seed.NEWS).first()
    followers = Follow.objects.filter(author=news).count() if news else 0
    context = {"page": "work", "work": visibility.read("work", "all"), "news": news, "followers": followers}
    return render(request, "demo/work.html", context)


@login_required
@require_POST
def story(request: HttpRequest) -> HttpResponseBase:
    """One post by the author with the most followers: the largest fan-out the demo has."""
    news = get_object_or_404(User, username=seed.NEWS)
    services.post(news, _("Evening edition: ") + random.choice(seed.POSTS))
    return answer(request, "demo:work")
