"""What the admin's pages share: bounded lists, no editing unless a class says so, confirmed actions that leave a log entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin, ShowFacets
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _, ngettext

from visibility.models import Overview

COUNTED = 10_000
AT_ONCE = 500


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than `COUNTED`: a list of a million rows costs what one of ten thousand costs."""

    limit = COUNTED

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        return rows.order_by()[: self.limit].count() if isinstance(rows, QuerySet) else len(rows)


class BoundedAdmin(ModelAdmin):  # type: ignore[type-arg]
    """A list that stays fast at any size, and that nobody can edit. Actions take at most `AT_ONCE` rows."""

    paginator = BoundedPaginator
    list_per_page = 50
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    sortable_by = ()
    actions_on_bottom = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        title = str(self.opts.verbose_name_plural)
        return super().changelist_view(request, {"title": title[:1].upper() + title[1:], **(extra_context or {})})

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        # Django 6.1 says where the actions are shown; 5.2 does not know that argument.
        where = {} if action_location is None else {"action_location": action_location}
        actions = super().get_actions(request, **where)
        actions.pop("delete_selected", None)
        return actions


def log(request: HttpRequest, model: type[Model], rows: Iterable[tuple[str, str]], text: str) -> None:
    """Leave a log entry for each `(object id, name)`: who did what, shown in the admin's history."""
    kind = ContentType.objects.get_for_model(model)
    LogEntry.objects.bulk_create(
        [
            LogEntry(
                user_id=request.user.pk or 0,
                content_type=kind,
                object_id=object_id[:200],
                object_repr=name[:200],
                action_flag=CHANGE,
                change_message=text,
            )
            for object_id, name in rows
        ]
    )


def log_resource(request: HttpRequest, resource: str, text: str) -> None:
    """Leave a log entry about a resource, or another thing of the live pages."""
    log(request, Overview, [(resource, resource)], text)


def confirm(
    request: HttpRequest,
    admin: ModelAdmin[Any],
    *,
    title: str,
    text: str,
    names: Sequence[str],
    fields: Sequence[tuple[str, str]],
    button: str,
    current: str,
    back: str,
) -> HttpResponse:
    """The page that asks before anything is done. `fields` are sent again, with `confirmed`, when the answer is yes."""
    context = {
        **admin.admin_site.each_context(request),
        "title": title,
        "opts": admin.opts,
        "text": text,
        "names": names[:50],
        "more": max(0, len(names) - 50),
        "fields": fields,
        "button": button,
        "current": current,
        "back": back,
    }
    return TemplateResponse(request, "admin/visibility/confirm.html", context)


def confirmed_action(
    admin: ModelAdmin[Any],
    request: HttpRequest,
    queryset: QuerySet[Any],
    *,
    name: str,
    title: str,
    text: str,
    button: str,
    current: str,
    act: Callable[[list[Any]], int],
    done: str,
) -> HttpResponse | None:
    """An admin action in two steps: ask, then act on what was shown, log each object, and say how many it was.

    Only the rows chosen by hand are taken, never "all that match": a list may be long and may have moved since.
    """
    chosen = request.POST.getlist("_selected_action")[:AT_ONCE]
    rows = list(queryset.filter(pk__in=chosen)[:AT_ONCE])
    if not request.POST.get("confirmed"):
        fields = [("action", name), ("index", "0"), *(("_selected_action", str(row.pk)) for row in rows)]
        return confirm(
            request,
            admin,
            title=title,
            text=text,
            names=[str(row) for row in rows],
            fields=fields,
            button=button,
            current=current,
            back=request.get_full_path(),
        )
    n = act(rows)
    log(request, admin.model, [(str(row.pk), str(row)) for row in rows], done)
    shown = ngettext("%(done)s: %(n)d resource.", "%(done)s: %(n)d resources.", n) % {"done": done, "n": n}
    admin.message_user(request, shown, messages.SUCCESS if n else messages.WARNING)
    return None


def away_text() -> str:
    """What a page says where Redis does not answer."""
    return _(
        "Redis does not answer: who watches, what waits and what is being built cannot be shown. The database's part is below."
    )
