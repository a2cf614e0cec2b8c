"""RQ workers in processes of their own, one lane each, with the maintenance loop in their parent.

One queue a process: on two or more queues RQ pops without a trace, and a worker that is killed right then loses the job. A lane's
workers work on that lane only, so that none starves behind a busy one. The default worker class is SimpleWorker: a drain job
builds hundreds of resources, keeps its claims by their lease and closes its database connections itself, so a fork a job
buys nothing and costs a new connection each. Children are started anew, not forked: they share no socket with the parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import django_rq
from django.db import connections
from django_rq.workers import get_exception_handlers
from redis.exceptions import RedisError
from rq.utils import import_attribute
from rq.worker import BaseWorker

from visibility import maintain
from visibility.conf import settings

logger = logging.getLogger("visibility")
SIMPLE = "rq.worker.SimpleWorker"
HEALTHY_SECONDS = 5.0
FIRST_DELAY = 0.25
REDIS_WAIT = 5.0
MAX_DELAY = 30.0
PR_SET_PDEATHSIG = 1
LOST_PARENT = 3
LISTED_SECONDS = 5.0
# A worker's connection to a database that keeps none serves for so many seconds: a new one costs as much as a small batch.
KEPT_SECONDS = 60


def lane_counts(options: Iterable[str]) -> dict[str, int]:
    """How many workers a lane gets: `hot=2` or `hot`; lanes not named get none. Without options: `LANES[…]["workers"]`.

    Raises:
        ValueError: no such lane, or not a number of 0 or more.
    """
    known = {name: settings.lane(name).workers for name in settings.LANES}
    wanted: dict[str, int] = {}
    for option in options:
        name, equals, number = option.partition("=")
        if name not in known:
            raise ValueError(f"no lane {name!r} in VISIBILITY['LANES']; it has {', '.join(sorted(known))}")
        if equals and not number.isdecimal():
            raise ValueError(f"--lane {option}: write NAME=NUMBER")
        wanted[name] = int(number) if equals else known[name]
    return wanted or known


def end_with_parent(parent: int) -> None:
    """See to it that this process ends when its parent does, however that ended."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        # Told to stop; what is still at work then hangs, and its claims end by their lease.
        time.sleep(2 * settings.BUILD_LEASE)
        os._exit(LOST_PARENT)

    threading.Thread(target=watch, name="visibility-parent", daemon=True).start()


def make_worker(lane: str, worker_class: str = SIMPLE) -> BaseWorker:
    """An RQ worker on a lane's queue, with the queue's own connection, job class and serializer."""
    queue = django_rq.get_queue(settings.lane(lane).queue)
    cls: Any = import_attribute(worker_class)
    worker: BaseWorker = cls(
        [queue],
        connection=queue.connection,
        exception_handlers=get_exception_handlers() or None,
        job_class=queue.job_class,
        queue_class=type(queue),
        serializer=queue.serializer,
    )
    return worker


def keep_connections() -> None:
    """For this process: connections of databases with `CONN_MAX_AGE` 0 serve job after job, and are checked before each.

    Django's own pool refuses to be kept so, and gives connections back without closing them anyway.
    """
    for alias in connections:
        own = connections[alias].settings_dict
        if own["CONN_MAX_AGE"] == 0 and not own["OPTIONS"].get("pool"):
            own.update(CONN_MAX_AGE=KEPT_SECONDS, CONN_HEALTH_CHECKS=True)


def keep_listed(worker: BaseWorker, ended: threading.Event) -> None:
    """Until `ended` is set, register the worker anew where Redis has lost that (a flush): RQ does so at its start only."""
    while not ended.wait(LISTED_SECONDS):
        with contextlib.suppress(RedisError):
            if worker.birth_date is not None and not worker.connection.hexists(worker.key, "birth"):
                # What its heartbeats have written since would be taken for another worker of this name.
                worker.connection.delete(worker.key)
                worker.register_birth()


@contextlib.contextmanager
def listed(worker: BaseWorker) -> Iterator[None]:
    """Inside this block the worker stays listed in RQ."""
    ended = threading.Event()
    keeper = threading.Thread(target=keep_listed, args=(worker, ended), name="visibility-listed", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()


def work_lane(lane: str, worker_class: str = SIMPLE) -> None:
    """Work on a lane until told to stop. A Redis outage is waited out, with a back-off; RQ itself gives up on some of them."""
    keep_connections()
    asked = threading.Event()
    delay = FIRST_DELAY
    while not asked.is_set():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: asked.set())
        connections.close_all()
        began = time.monotonic()
        try:
            worker = make_worker(lane, worker_class)
            worker.log_job_description = False
            worker.max_connection_wait_time = REDIS_WAIT
            if not asked.is_set():
                with listed(worker):
                    worker.work(logging_level="WARNING")
            # RQ ends when it is told to, and on some troubles with Redis: only in the first case it notes when.
            if worker._shutdown_requested_date is not None:
                return
        except RedisError as error:
            logger.warning("the worker of lane %s waits for Redis: %s", lane, error)
        delay = FIRST_DELAY if time.monotonic() - began > HEALTHY_SECONDS else min(REDIS_WAIT, delay * 2)
        asked.wait(delay * random.uniform(0.5, 1.0))  # noqa: S311


@dataclass
class Child:
    """One worker process and when it may be started (again)."""

    lane: str
    number: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    not_before: float = 0.0
    delay: float = FIRST_DELAY


@dataclass
class Crew:
    """The children of one `visibility_worker`: started, watched, restarted when they die, ended together."""

    counts: dict[str, int]
    worker_class: str = SIMPLE
    grace: float = 10.0
    arguments: Sequence[str] = ()
    maintenance: bool = True
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.children = [Child(lane, n + 1) for lane, count in self.counts.items() for n in range(count)]

    def run(self) -> None:
        """Run until `stop` is set; then end the children, in time or by force."""
        loop = threading.Thread(target=maintain.loop, args=(self.stop,), name="visibility-maintenance")
        if self.maintenance:
            loop.start()
        try:
            while not self.stop.is_set():
                for child in self.children:
                    self._see_to(child)
                self.stop.wait(0.2)
        finally:
            self.stop.set()
            self._end()
            if self.maintenance:
                loop.join()

    def _see_to(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None and child.process.poll() is not None:
            lived = now - child.started
            child.delay = FIRST_DELAY if lived > HEALTHY_SECONDS else min(MAX_DELAY, child.delay * 2)
            code, child.process, child.not_before = child.process.returncode, None, now + child.delay
            logger.warning("worker %s/%d ended with %s; started again in %.1f s", child.lane, child.number, code, child.delay)
        if child.process is None and now >= child.not_before:
            own = ["--child", child.lane, "--parent", str(os.getpid()), "--worker-class", self.worker_class]
            child.process = subprocess.Popen([sys.executable, *_entry(), "visibility_worker", *own, *self.arguments])  # noqa: S603
            child.started = now

    def _end(self) -> None:
        """SIGTERM lets a batch finish, a second one gives its claims back, SIGKILL leaves them to their lease."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            living = [child.process for child in self.children if child.process and child.process.poll() is None]
            for process in living:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
            until = time.monotonic() + self.grace
            for process in living:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.05, until - time.monotonic()))


def _entry() -> list[str]:
    """How this process was started, so that its children import the same project: manage.py, or `python -m django`."""
    script = Path(sys.argv[0])
    own = script.suffix == ".py" and script.name != "__main__.py" and script.exists()
    return [str(script)] if own else ["-m", "django"]
