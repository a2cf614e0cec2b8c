"""Once more after a deadlock: the database has rolled the loser back as a whole, and the winner is through a moment later."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, connections

T = TypeVar("T")
TRIES = 4


def retried(call: Callable[[], T], using: str) -> T:
    """What `call` answers, tried again up to `TRIES` times after a deadlock or a failed serialisation.

    Inside a transaction on that database it is tried once: that transaction is the caller's to repeat.

    Raises:
        OperationalError: the last one.
    """
    tries = 0
    while True:
        try:
            return call()
        except OperationalError as error:
            tries += 1
            if tries == TRIES or connections[using].in_atomic_block or not passes(error):
                raise
            time.sleep(random.uniform(0, 0.05))  # noqa: S311


def passes(error: OperationalError) -> bool:
    """Whether it is a deadlock, a failed serialisation, or a wait for a lock that was too long (MariaDB)."""
    code = error.args[0] if error.args else None
    return code in (1205, 1213) or getattr(error.__cause__, "sqlstate", "") in ("40001", "40P01")
