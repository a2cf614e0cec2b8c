from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from tests.conftest import Live
from tests.insight.test_rollup import write
from tests.lanes import pend, watch
from tests.support import wait_for
from visibility.insight.histogram import bucket_of
from visibility.models import Event, FreshnessSLO
from visibility.soft import client


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    client.close()
    yield
    client.close()


def view() -> str:
    out = io.StringIO()
    call_command("visibility_top", once=True, stdout=out, no_color=True)
    return out.getvalue()


def cells(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(name + " "))


@pytest.mark.django_db
class TestOnce:
    def test_it_shows_what_goes_on(self) -> None:
        watch("counter:a", "counter:b")
        pend("counter:a")
        write(0, {"gate_hot|counter|": 5, "gate_cold|counter|": 95, "reads|counter|fresh": 9, "reads|counter|stale": 1})
        write(0, {f"freshness_sent|counter|~{bucket_of(0.3)}": 10})
        FreshnessSLO.objects.create(data_type="counter", seconds=2, objective=0.99)
        decision = {"counter": {"hot": 3, "cold": 4}}
        Event.objects.create(source="emit", data_type="counter", created_at=timezone.now(), outcome="done", decision=decision)
        text = view()
        assert cells(text, "hot")[1:3] == ["normal", "1"]
        assert cells(text, "counter")[1:4] == ["2", "5", "95"]
        assert cells(text, "counter")[-1] == "90%"
        promise = next(line for line in text.splitlines() if line.startswith("counter") and "Met" in line)
        assert "100.00%" in promise
        assert re.search(r"counter\s+done\s+hot 3, cold 4", text)

    def test_redis_away_leaves_the_rest(self, settings: Any) -> None:
        settings.VISIBILITY = {**settings.VISIBILITY, "REDIS_URL": "redis://127.0.0.1:1/0"}
        text = view()
        assert "Redis is away" in text
        assert "promise" in text


@pytest.mark.django_db(transaction=True)
def test_it_lives_until_it_is_ended(live: Live) -> None:
    process = live.command("visibility_top", "--interval", "0.2", ready="Ctrl-C ends it.")
    wait_for(lambda: process.output.count("last events") >= 3, 20)
    assert "\x1b[2J" not in process.output
