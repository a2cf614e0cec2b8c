"""Spans through the real OpenTelemetry API, with a provider that only records."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

trace = pytest.importorskip("opentelemetry.trace")

from tests.lanes import drain_all, watch  # noqa: E402
from visibility.events.external import emit  # noqa: E402
from visibility.insight import spans  # noqa: E402
from visibility.models import event_id  # noqa: E402


class Recorded(trace.NonRecordingSpan):  # type: ignore[misc,name-defined]
    """A span that remembers how it was started."""

    def __init__(self, name: str, parent: Any, links: Sequence[Any], attributes: Any) -> None:
        known = parent is not None and parent.is_valid
        number = parent.trace_id if known else uuid.uuid4().int
        super().__init__(trace.SpanContext(number, uuid.uuid4().int >> 64, is_remote=False, trace_flags=trace.TraceFlags(1)))
        self.name, self.links, self.attributes = name, [link.context for link in links or ()], dict(attributes or {})
        self.parent = parent.span_id if known else None
        self.error: BaseException | None = None

    def is_recording(self) -> bool:
        return True

    def record_exception(self, exception: BaseException, *args: Any, **kwargs: Any) -> None:
        self.error = exception


class Tracer(trace.Tracer):  # type: ignore[misc,name-defined]
    def __init__(self, out: list[Recorded]) -> None:
        self.out = out

    def start_span(
        self, name: str, context: Any = None, kind: Any = None, attributes: Any = None, links: Any = None, **_: Any
    ) -> Any:
        parent = trace.get_current_span(context).get_span_context()
        self.out.append(Recorded(name, parent, links, attributes))
        return self.out[-1]

    @contextmanager
    def start_as_current_span(self, name: str, context: Any = None, **options: Any) -> Iterator[Any]:
        span = self.start_span(name, context, attributes=options.get("attributes"), links=options.get("links"))
        with trace.use_span(span, record_exception=True):
            yield span


class Provider(trace.TracerProvider):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        self.spans: list[Recorded] = []

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        return Tracer(self.spans)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    provider = Provider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return provider.spans


def test_without_a_provider_nothing_happens() -> None:
    assert not spans.installed()
    with spans.span("gate", [event_id()]) as one:
        assert one is None


def test_the_trace_of_an_event_is_its_id_in_every_process(recorded: list[Recorded]) -> None:
    event = event_id()
    with spans.span("gate", [event], hot=3):
        pass
    with spans.span("build", [str(event)]):
        pass
    gate, build = recorded
    assert gate.name == "visibility.gate" and build.name == "visibility.build"
    assert gate.get_span_context().trace_id == build.get_span_context().trace_id == event.int
    assert gate.attributes == {"visibility.hot": 3}


def test_a_span_inside_is_a_child(recorded: list[Recorded]) -> None:
    with spans.span("build", [event_id()]), spans.span("push", [event_id()], updates=2):
        pass
    build, push = recorded
    assert push.parent == build.get_span_context().span_id
    assert push.get_span_context().trace_id == build.get_span_context().trace_id


def test_several_events_are_linked(recorded: list[Recorded]) -> None:
    events = [event_id() for _ in range(100)]
    with spans.span("build", events):
        pass
    assert recorded[0].get_span_context().trace_id == events[0].int
    assert [link.trace_id for link in recorded[0].links] == [event.int for event in events[1 : spans.LINKS + 1]]


def test_the_request_that_caused_it_is_linked(recorded: list[Recorded]) -> None:
    request = Recorded("request", None, (), {})
    with trace.use_span(request), spans.span("gate", [event_id()]):
        pass
    assert request.get_span_context().trace_id in [link.trace_id for link in recorded[0].links]


def test_what_is_no_event_id_starts_a_trace_of_its_own(recorded: list[Recorded]) -> None:
    with spans.span("build", ["", "external:7", None]):
        pass
    assert recorded[0].parent is None


def test_an_exception_goes_on(recorded: list[Recorded]) -> None:
    with pytest.raises(ValueError, match="no"), spans.span("build", [event_id()]):
        raise ValueError("no")
    assert isinstance(recorded[0].error, ValueError)
    with spans.span("build", []):
        pass
    assert recorded[1].parent is None


@pytest.mark.django_db(transaction=True)
def test_event_gate_build_and_push_are_one_trace(recorded: list[Recorded]) -> None:
    watch("counter:a")
    event = emit("counter", ["a"]).event_id
    drain_all()
    names = {one.name: one for one in recorded}
    assert set(names) == {"visibility.gate", "visibility.build", "visibility.push"}
    assert {one.get_span_context().trace_id for one in recorded} == {event.int}
    assert names["visibility.push"].parent == names["visibility.build"].get_span_context().span_id
