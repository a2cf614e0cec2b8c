"""Ports for servers that tests start; imported by the settings, so it imports little."""

from __future__ import annotations

import random
import socket

# Below the range from which the kernel takes ports for outgoing connections: what was free a moment ago stays so.
FIRST, LAST = 20_000, 32_000
_random = random.SystemRandom()


def free_port() -> int:
    """A port on the loopback interface on which nothing listens."""
    while True:
        port = _random.randint(FIRST, LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
