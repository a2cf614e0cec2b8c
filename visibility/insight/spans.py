"""OpenTelemetry spans, if the API package is installed: event → gate → build → push as one trace, over processes.

The id of an event is the id of its trace: both are 128 bits, so that whoever works on an event's behalf finds the trace without
anything being passed along. A span that serves several events belongs to the first one's trace and links to the others; the span
of the request that caused the event is linked too. Without the package, or with no provider set, `span` costs a comparison.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

try:
    from opentelemetry import trace
    from opentelemetry.trace import Link, NonRecordingSpan, ProxyTracerProvider, SpanContext, TraceFlags
except ImportError:  # the package is an extra
    trace = None  # type: ignore[assignment]

P = ParamSpec("P")
R = TypeVar("R")
LINKS = 32
_inside: ContextVar[bool] = ContextVar("visibility_span", default=False)


def installed() -> bool:
    """Whether spans go anywhere: the API is there and a provider has been set."""
    return trace is not None and not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


def _context(event: Any) -> Any:
    """The span context that stands for an event; None for what is no event id."""
    try:
        number = event.int if isinstance(event, UUID) else UUID(str(event)).int
    except ValueError:
        return None
    low = number & (1 << 64) - 1
    return SpanContext(trace_id=number, span_id=low or 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


@contextmanager
def span(name: str, events: Iterable[Any] = (), **attributes: str | int | float | bool) -> Iterator[Any]:
    """A span `visibility.<name>` around a block. `events` are ids of those it works for; inside another span of ours they are
    left out, the span is its child. An exception is recorded and goes on. Yields the span, or None."""
    if not installed():
        yield None
        return
    tracer = trace.get_tracer("visibility")
    attributes = {f"visibility.{key}": value for key, value in attributes.items()}
    if _inside.get():
        with tracer.start_as_current_span(f"visibility.{name}", attributes=attributes) as one:
            yield one
        return
    contexts = [context for context in map(_context, list(events)[: LINKS + 1]) if context is not None]
    links = [Link(context) for context in contexts[1:]]
    current = trace.get_current_span().get_span_context()
    if contexts and current.is_valid:
        links.append(Link(current))
    parent = trace.set_span_in_context(NonRecordingSpan(contexts[0])) if contexts else None
    token = _inside.set(True)
    try:
        with tracer.start_as_current_span(f"visibility.{name}", context=parent, links=links, attributes=attributes) as one:
            yield one
    finally:
        with contextlib.suppress(ValueError):  # a generator that was closed in another context
            _inside.reset(token)


def traced(name: str, events: Callable[..., Iterable[Any]] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: each call is a span; `events` picks the ids of those it works for out of the arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if not installed():
                return function(*args, **kwargs)
            with span(name, events(*args, **kwargs) if events else ()):
                return function(*args, **kwargs)

        return wrapper

    return decorate
