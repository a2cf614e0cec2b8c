"""Freshness promises: edited here, judged here, with their history."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin import ModelAdmin, ShowFacets, action, display
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from visibility import freshness
from visibility.admin import figures
from visibility.admin.base import confirmed_action
from visibility.datatypes import registry
from visibility.models import FreshnessSLO
from visibility.templatetags.visibility_admin import percent, span, state


class SLOForm(forms.ModelForm):  # type: ignore[type-arg]
    """Checks what `Freshness` checks in code."""

    class Meta:
        model = FreshnessSLO
        fields = ("seconds", "objective", "window")
        help_texts = {
            "seconds": gettext_lazy("A change is in time if it is shown within so many seconds."),
            "objective": gettext_lazy("The share of changes that has to be in time: 0.99 is 99 %."),
            "window": gettext_lazy("Judged over so many seconds: 86400 is a day, 2592000 are 30 days."),
        }

    def clean_seconds(self) -> float:
        seconds: float = self.cleaned_data["seconds"]
        if seconds <= 0:
            raise ValidationError(_("Must be above 0."))
        return seconds

    def clean_objective(self) -> float:
        objective: float = self.cleaned_data["objective"]
        if not 0 < objective < 1:
            raise ValidationError(_("Must be between 0 and 1; 1 would leave no error budget."))
        return objective

    def clean_window(self) -> int:
        window: int = self.cleaned_data["window"]
        if not 900 <= window <= 90 * 86_400:
            raise ValidationError(_("Must be from 15 minutes to 90 days."))
        return window


class FreshnessSLOAdmin(ModelAdmin):  # type: ignore[type-arg]
    form = SLOForm
    list_display = ("data_type", "target", "share", "attained", "budget", "median", "tail", "oldest", "condition", "origin")
    sortable_by = ()
    show_facets = ShowFacets.NEVER
    show_full_result_count = False
    list_per_page = 100
    actions = ("follow_code",)
    change_form_template = "admin/visibility/slo_change_form.html"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Promises come from registered data types."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Freshness promises"), **(extra_context or {})})

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list with each row's report beside it: three queries for all."""
        freshness.sync_slos()
        changelist = super().get_changelist_instance(request)
        reports = {found.data_type: found for found in freshness.report()}
        for row in changelist.result_list:
            row.report = reports.get(row.data_type)
        return changelist

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        extra = dict(extra_context or {})
        slo = self.get_object(request, object_id)
        if slo is not None and request.method == "GET":
            chosen = figures.range_of(request.GET.get("range", ""))
            found = freshness.report([slo.data_type])
            extra |= {
                "report": found[0] if found else None,
                "charts": figures.promise_charts(slo.data_type, slo.seconds, chosen, timezone.now()),
                "chosen": chosen,
                "ranges": figures.RANGES.values(),
            }
        return super().change_view(request, object_id, form_url, extra)

    def save_model(self, request: HttpRequest, obj: FreshnessSLO, form: Any, change: bool) -> None:
        if form.changed_data:
            obj.edited = True
        super().save_model(request, obj, form, change)

    @action(description=gettext_lazy("Follow the code again"), permissions=["change"])
    def follow_code(self, request: HttpRequest, queryset: QuerySet[FreshnessSLO]) -> HttpResponse | None:
        def act(rows: list[FreshnessSLO]) -> int:
            n = FreshnessSLO.objects.filter(pk__in=[row.pk for row in rows]).update(edited=False)
            freshness.sync_slos()
            return n

        return confirmed_action(
            self,
            request,
            queryset,
            name="follow_code",
            title=_("Follow the code again?"),
            text=_("What was edited by hand is given up; the promises are those that the data types declare."),
            button=_("Yes, follow the code"),
            current="slo",
            act=act,
            done=_("Follows the code again"),
        )

    @display(description=gettext_lazy("target"))
    def target(self, slo: Any) -> str:
        return span(slo.seconds)

    @display(description=gettext_lazy("objective"))
    def share(self, slo: Any) -> str:
        return percent(slo.objective, 2)

    @display(description=gettext_lazy("attained"))
    def attained(self, slo: Any) -> str:
        return percent(slo.report and slo.report.attained, 2)

    @display(description=gettext_lazy("budget left"))
    def budget(self, slo: Any) -> str:
        return percent(slo.report and slo.report.budget_left, 0)

    @display(description=gettext_lazy("median"))
    def median(self, slo: Any) -> str:
        shown = span(slo.report and slo.report.p50)
        return f"{shown} ({_('few samples')})" if slo.report and slo.report.few else shown

    @display(description=gettext_lazy("99th percentile"))
    def tail(self, slo: Any) -> str:
        return span(slo.report and slo.report.p99)

    @display(description=gettext_lazy("oldest mark"))
    def oldest(self, slo: Any) -> str:
        return span(slo.report and slo.report.oldest)

    @display(description=gettext_lazy("state"))
    def condition(self, slo: Any) -> SafeString:
        found = slo.report.state if slo.report else freshness.STATES["none"]
        return state(found.css, str(found.words))

    @display(description=gettext_lazy("from"))
    def origin(self, slo: Any) -> str:
        if registry.find(slo.data_type) is None:
            return _("no longer registered")
        return _("edited by hand") if slo.edited else _("code")


def register(site: admin.AdminSite) -> None:
    site.register(FreshnessSLO, FreshnessSLOAdmin)
