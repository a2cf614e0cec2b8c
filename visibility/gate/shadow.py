"""Shadow mode: the gate decides and counts, and changes nothing; what would have been saved can be told from it."""

from __future__ import annotations

from visibility.events import audience
from visibility.exceptions import RedisAway
from visibility.gate.decide import FEW, Verdict
from visibility.gate.plan import Plan, found
from visibility.soft import leases

COUNTED = 10_000


def only_count(plan: Plan) -> Verdict:
    """Hot: what would be recomputed now. Cold: what everybody's recompute would have been besides, up to `COUNTED` a QuerySet."""
    verdict = Verdict(label="shadow")
    name = plan.data_type.name
    hot = everybody = 0
    try:
        explicit = [*plan.keys, *(key for key in plan.covered if key not in plan.keys)]
        visible = leases.visible_among(name, explicit)
        everybody += len(explicit)
        queries = found([*plan.queries, *plan.covered_queries], plan.data_type, lambda items, error: None)
        count, keys = leases.visible_up_to(name, FEW) if queries else (0, [])
        for one in queries:
            if one.queryset is None:
                everybody += len(one.keys)
                visible |= leases.visible_among(name, one.keys)
                continue
            narrows = audience.can_narrow(one.queryset)
            size = one.queryset.order_by()[: COUNTED + 1].count() if narrows else one.queryset.count()
            if size > COUNTED:
                verdict.reasons["more than counted"] += 1
            everybody += min(size, COUNTED)
            if count and narrows:
                names = audience.chunks(keys if keys is not None else leases.visible_iter(name))
                visible |= {key for chunk in names for key in audience.narrow(one.queryset, chunk)}
        hot = len(visible)
        verdict.sample = sorted(visible)[:10]
    except RedisAway:
        verdict.reasons["redis"] += 1
    except Exception as error:
        # Nothing here may cost the host more than a line in the log of events.
        verdict.error = f"{name}: {type(error).__name__}: {error}"
    verdict.hot, verdict.cold = hot, max(0, everybody - hot)
    verdict.reasons["shadow"] += verdict.hot + verdict.cold
    return verdict
