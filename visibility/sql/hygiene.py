"""Database connections of workers: closed around each batch, and never shared with a parent."""

from __future__ import annotations

import os
from typing import Any

from django.db import connections

_inherited: list[Any] = []
_forked = False
_watching = False


def _after_fork() -> None:
    global _forked
    _forked = True


def watch() -> None:
    """From now on, let children know that they were forked. Called where this app is loaded, before any worker forks."""
    global _watching
    if not _watching and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
    _watching = True


def forget_inherited() -> None:
    """In a child, at its first call: leave the parent's connections alone and begin anew.

    They are kept unused, not closed: closing would say goodbye to the server over the parent's socket.
    """
    global _forked
    if not _forked:
        return
    _forked = False
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            _inherited.append(connection.connection)
            _inherited.append(connection)
            del connections[connection.alias]


def close_broken() -> None:
    """Close connections that failed, so that what follows gets new ones. One that is only past its age serves until the job
    ends: without `CONN_MAX_AGE` every connection is, and a new one for each batch costs as much as the batch."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def close_old() -> None:
    """Close connections that are broken or past their age; one with an open transaction is left to whoever opened that."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
