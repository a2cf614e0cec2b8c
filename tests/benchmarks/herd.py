"""Readers of one expired key, in a process of their own: `python -m tests.benchmarks.herd KEY READERS`. See `b7_read`."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from tests.benchmarks import plain


def register_herd() -> None:
    """A type whose builds are counted in Redis, and take 50 ms. Harmless when repeated."""
    from visibility.datatypes import DataType, register, registry

    if registry.find("herd") is not None:
        return

    @register
    class Herd(DataType):
        name = "herd"

        def build(self, key: str) -> Any:
            plain.redis().incr("herd:builds")
            time.sleep(0.05)
            return {"key": key}


async def readers(key: str, number: int) -> None:
    """Wait for the word, then read, all at once."""
    from visibility.read import aread
    from visibility.soft.client import aclose

    redis = plain.redis()
    redis.incr("herd:ready")
    while not (go := redis.get("herd:go")):
        await asyncio.sleep(0.01)
    await asyncio.sleep(max(0.0, float(go) - time.time()))
    found = await asyncio.gather(*(aread("herd", key) for _ in range(number)))
    redis.incrby("herd:read", sum(one.data == {"key": key} for one in found))
    await aclose()


def main() -> None:
    import django

    django.setup()
    register_herd()
    asyncio.run(readers(sys.argv[1], int(sys.argv[2])))


if __name__ == "__main__":
    main()
