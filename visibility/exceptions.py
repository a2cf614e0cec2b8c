"""Every error this package raises on purpose, with one base class."""

from __future__ import annotations


class VisibilityError(Exception):
    """Base class of all errors raised by visibility."""


class BadResource(VisibilityError, ValueError):
    """A resource name is not `type:key` with a key of 1 to 200 characters without spaces and control characters."""


class UnknownDataType(VisibilityError, LookupError):
    """No data type of this name is registered."""


class BadDeclaration(VisibilityError, TypeError):
    """A data type is declared wrongly; the message names the type and what to change."""


class BuildFailed(VisibilityError):
    """A build raised, and no snapshot is left to serve."""


class BuildTimeout(VisibilityError):
    """A build took longer than `BUILD_TIMEOUT`.

    No `TimeoutError`: raised by a signal while a client of Redis or HTTP waits, it would be taken for the server's silence.
    """


class BadSnapshot(VisibilityError, ValueError):
    """A build returned what cannot be stored: not JSON, or larger than the limit. Names the type and key."""


class PayloadTooLarge(VisibilityError, ValueError):
    """An event's payload is over `LIMITS["payload_bytes"]`."""


class RedisAway(VisibilityError, ConnectionError):
    """Redis does not answer, or refuses writes. The soft state is out of reach for now."""


class LockLost(VisibilityError):
    """A lock or claim ended while its owner was still at work; nothing may be written any more."""
