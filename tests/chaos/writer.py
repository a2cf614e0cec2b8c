"""Ten threads that count counters up, until the process is told to end or is killed: `python -m tests.chaos.writer SEED`."""

from __future__ import annotations

import random
import signal
import sys
import threading

import django

THREADS = 10


def write(seed: int, over: threading.Event, names: list[str]) -> None:
    """Count up random counters; a database that is away or locked is tried again."""
    from django.db import Error, close_old_connections, transaction

    from tests.app.models import Counter

    chance = random.Random(seed)
    while not over.wait(chance.uniform(0.05, 0.6)):
        try:
            with transaction.atomic():
                row = Counter.objects.select_for_update().get(name=chance.choice(names))
                row.value += 1
                row.save()
        except Error:
            close_old_connections()


def main() -> None:
    django.setup()
    from tests.app.models import Counter

    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    names = list(Counter.objects.values_list("name", flat=True))
    seed = int(sys.argv[1])
    threads = [threading.Thread(target=write, args=(seed * 100 + n, over, names)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
