"""Steps that the tests of the work below the gate share: to watch, to change, to pend, to drain, and to look."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.app.models import Counter
from tests.support import servers, wait_for
from tests.support.processes import Process
from visibility import recompute
from visibility.conf import settings
from visibility.soft import claims, leases, levels, looks, pending
from visibility.soft.claims import Claim
from visibility.soft.looks import Look
from visibility.soft.pending import Item, Pended


def watch(*resources: str, member: str = "1/tab", kind: str = "watch", seconds: float = 60) -> None:
    leases.renew([leases.Watch(name, member, kind, seconds) for name in resources])


def leave(*resources: str, member: str = "1/tab", redis: Any = None) -> None:
    """The last watcher leaves and the linger is over."""
    leases.release([(name, member, "watch") for name in resources])
    if redis is not None:
        for name in resources:
            kind, _, key = name.partition(":")
            redis.zadd(f"{{vis:0}}:visible:{kind}", {key: 1})
            redis.delete(f"{{vis:0}}:fresh:{name}")


def change(key: str, value: int) -> None:
    """Change the source without a signal: the gate's steps follow by hand."""
    if not Counter.objects.filter(name=key).update(value=value):
        Counter.objects.bulk_create([Counter(name=key, value=value)])


def pend(*resources: str, lane: str = "hot", since: float | None = None, **options: Any) -> Pended:
    """Put changed resources into their lane; without `window`, due at once."""
    at = int((time.time() if since is None else since) * 1000)
    return pending.pend(settings.lane(lane), [Item(name, at, **{"window": 0.0, **options}) for name in resources])


def claim(lane: str = "hot", limit: int = 100, lease: float = 15, n: int = 1) -> Claim:
    """The next batch with at least `n` rows, once due."""
    found: list[Claim] = []

    def due() -> bool:
        found[:] = [claims.claim(lane, 0, limit, lease)]
        return len(found[0].rows) >= n

    wait_for(due, 5, "something is due")
    return found[0]


def look(resource: str, lane: str = "hot") -> Look:
    return looks.look(lane, [resource])[resource]


def drain(lane: str = "hot") -> int:
    """One drain job in this process."""
    return recompute.drain(lane, 0)


def drain_all(lane: str = "hot", seconds: float = 20) -> None:
    """Drain until the lane is empty; back-offs are waited for."""

    def empty() -> bool:
        recompute.drain(lane, 0)
        state = levels.lane_state(lane)
        return not state.pending and not state.claimed

    wait_for(empty, seconds, f"lane {lane} is empty")


def child(*arguments: str, point: str = "", do: str = "", visibility: dict[str, Any] | None = None, **env: str) -> Process:
    """`tests.support.child` in a process of its own."""
    more = {"CHILD_POINT": point, "CHILD_DO": do} if point else {}
    return servers.python("-m", "tests.support.child", *arguments, visibility=visibility, **more, **env)


def answer(process: Process, seconds: float = 30) -> Any:
    """What a child printed at its end."""
    code = process.popen.wait(seconds)
    assert code == 0, f"ended with {code}:\n{process.output[-3000:]}"
    return json.loads(process.output.strip().splitlines()[-1])


def ids(queue: str = "visibility-hot") -> list[str]:
    """The jobs that wait in a queue."""
    return [str(job_id) for job_id in recompute.queue(queue).get_job_ids()]
