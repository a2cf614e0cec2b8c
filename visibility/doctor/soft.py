"""Checks of Redis: reachable, never evicting, every key with a lifetime, its clock, leases that nobody announces."""

from __future__ import annotations

import time
from collections.abc import Iterator

from django.utils.translation import gettext as _

from visibility.conf import settings
from visibility.datatypes import registry
from visibility.doctor.finding import CRITICAL, INFO, WARNING, Finding
from visibility.exceptions import RedisAway
from visibility.soft import inspect, pages

SKEW = 2.0
SAMPLE = 300
FULL = 0.9
LONG_HELD = 3_600.0


def local_time() -> float:
    """This machine's clock."""
    return time.time()


def reachable() -> Iterator[Finding]:
    """Redis answers and takes writes."""
    try:
        inspect.write_probe()
    except RedisAway as error:
        yield Finding(
            code="redis_away",
            severity=CRITICAL,
            symptom=_("Redis is out of reach, or takes no writes. Reads build from the source; changes only mark."),
            evidence={"error": str(error), "url": inspect.safe_url(settings.REDIS_URL)},
            remedy=_(
                "Bring it back, or correct VISIBILITY['REDIS_URL']. A replica that refuses writes: point the URL at the primary "
                "(sentinel://… follows it). Nothing is lost meanwhile; the maintenance loop catches up."
            ),
        )


def eviction() -> Iterator[Finding]:
    """Redis never throws keys out by itself."""
    for info in inspect.server_infos("memory"):
        policy = str(info.get("maxmemory_policy", "noeviction"))
        limit = int(info.get("maxmemory", 0))
        if policy != "noeviction":
            yield Finding(
                code="eviction_policy",
                severity=WARNING if limit == 0 else CRITICAL,
                symptom=_("Redis may evict keys (maxmemory-policy %(policy)s): watches end early, queued RQ jobs vanish.")
                % {"policy": policy},
                evidence={"maxmemory_policy": policy, "maxmemory": limit},
                remedy=_("Set maxmemory-policy noeviction, and give a cache that wants eviction a Redis of its own."),
            )
            return


def memory() -> Iterator[Finding]:
    """Redis is not about to refuse writes."""
    for info in inspect.server_infos("memory"):
        limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
        if limit and used > FULL * limit:
            yield Finding(
                code="memory_full",
                severity=CRITICAL if used >= limit else WARNING,
                symptom=_("Redis has used %(share)s of its memory; when it is full it refuses writes.")
                % {"share": f"{used / limit:.0%}"},
                evidence={"used_memory": used, "maxmemory": limit},
                remedy=_("Raise maxmemory, shorten the ttl of the largest data types, or lower LIMITS['snapshot_bytes']."),
            )


def immortal_keys() -> Iterator[Finding]:
    """Of a random sample of keys, ours all end by themselves."""
    immortal = inspect.sample_immortal(SAMPLE)
    if immortal:
        yield Finding(
            code="immortal_keys",
            severity=WARNING,
            symptom=_("Some keys of this app have no lifetime: locks or leases that can never end by themselves."),
            evidence={"sample": SAMPLE, "found": len(immortal), "keys": sorted(immortal)[:5]},
            remedy=_(
                "Every script of this app sets lifetimes, so something else wrote or restored them (PERSIST, a restore without "
                "TTLs, another app with the same PREFIX). Delete them: all of the soft state is rebuilt."
            ),
        )


def clock_skew() -> Iterator[Finding]:
    """This machine's clock and the Redis server's agree."""
    before = local_time()
    server = inspect.redis_time()
    skew = (before + local_time()) / 2 - server
    if abs(skew) > SKEW:
        yield Finding(
            code="clock_skew",
            severity=WARNING,
            symptom=(
                _("This machine's clock is %(seconds)s s ahead of the Redis server's.")
                if skew > 0
                else _("This machine's clock is %(seconds)s s behind the Redis server's.")
            )
            % {"seconds": f"{abs(skew):.1f}"},
            evidence={"seconds": round(skew, 3)},
            remedy=_(
                "Run NTP on both. Leases and claims are safe (the Redis clock alone decides), but freshness figures and the "
                "order of events are read from machine clocks and are off by as much."
            ),
        )


def named_locks() -> Iterator[Finding]:
    """Named locks are given back by their holders, and soon."""
    held = pages.locks(limit=pages.MAX)
    ended = [one for one in held.rows if one.ended]
    if ended:
        yield Finding(
            code="locks_ended",
            severity=WARNING,
            symptom=_("%(n)s named locks ended by time in the last ten minutes, not by their holders.") % {"n": len(ended)},
            evidence={"locks": [[one.name, round(-one.left)] for one in ended[-5:]], "held": held.total - len(ended)},
            remedy=_(
                "The holder died, or its work took longer than the lock: give visibility.lock more seconds, or extend() it on "
                "the way, and let what is written refuse a lower fence. The locks are free; nothing has to be cleaned up."
            ),
        )
    old = [one for one in held.rows if one.endless or (not one.ended and (one.age or 0) > LONG_HELD)]
    if old:
        yield Finding(
            code="locks_held_long",
            severity=WARNING if any(one.endless for one in old) else INFO,
            symptom=_("%(n)s named locks are held for more than %(minutes)s minutes or will never end.")
            % {"n": len(old), "minutes": f"{LONG_HELD / 60:.0f}"},
            evidence={
                "locks": [
                    [one.name, one.owner, round(one.age or 0), "never" if one.endless else round(one.left)] for one in old[:5]
                ]
            },
            remedy=_(
                "Look at the holder (host and process id are in the evidence). If it is gone, the lock ends by itself unless its "
                "lifetime was taken away (PERSIST): then delete the key lock:<name>."
            ),
        )


def dead_leases() -> Iterator[Finding]:
    """What ended was announced: no visibility is long over and still in the index."""
    late = {data_type.name: n for data_type in registry if (n := inspect.ended_visible(data_type.name, 2 * settings.TTL))}
    if late:
        yield Finding(
            code="dead_leases",
            severity=WARNING,
            symptom=_("Leases ended long ago and nobody announced it: became_hidden was not sent, indexes grow."),
            evidence={"older_than_seconds": 2 * settings.TTL, "by_type": late},
            remedy=_("Run visibility_maintain (or visibility_worker, which has the loop inside) and leave it running."),
        )
