"""The test project with RQ queues that carry JSON instead of pickles."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import RQ_QUEUES as _QUEUES

RQ_QUEUES = {name: {**queue, "SERIALIZER": "rq.serializers.JSONSerializer"} for name, queue in _QUEUES.items()}
