"""What the tests stand on: real servers, a TCP proxy, socket clients, waiting without sleeping."""

from __future__ import annotations

from tests.support.needs import lacking, need
from tests.support.wait import await_for, wait_for

__all__ = ["await_for", "lacking", "need", "wait_for"]
