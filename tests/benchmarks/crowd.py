"""Very many websocket clients that cost next to nothing: raw sockets in one thread, read by epoll.

    with Crowd(site.port, "/ws/visibility/") as crowd:
        crowd.open(1_000); crowd.say({"op": "ping"}); crowd.expect(b'"pong"', 10)

They offer no compression, as a browser would: its buffers are the server's, not the consumer's, and would hide the rest.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

# Handshakes under way at once.
AT_ONCE = 50
KEEP = 10.0
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class Member:
    """One client: its socket, and what has come of a frame that is not whole."""

    __slots__ = ("buffer", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.buffer = sock, b""


class Crowd:
    """Clients of one path. All waiting has a deadline in seconds and raises AssertionError after it."""

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path
        self.members: dict[int, Member] = {}
        self._epoll = select.epoll()
        self._kept = time.monotonic()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for member in self.members.values():
            member.sock.close()
        self.members.clear()
        self._epoll.close()

    def open(self, number: int, cookies: Sequence[str] = ("",), seconds: float = 60) -> list[Member]:
        """So many more, with these Cookie headers by turns; answers them once all handshakes are through."""
        new: list[Member] = []
        for start in range(0, number, AT_ONCE):
            part = [self._ask(cookies[n % len(cookies)]) for n in range(start, min(number, start + AT_ONCE))]
            ends = time.monotonic() + seconds
            for member in part:
                self._upgraded(member, ends)
            new += part
        return new

    def _ask(self, cookie: str) -> Member:
        sock = socket.create_connection(("127.0.0.1", self.port), 20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = [
            f"GET {self.path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
        ]  # fmt: skip
        if cookie:
            lines.append(f"Cookie: {cookie}")
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        return Member(sock)

    def _upgraded(self, member: Member, ends: float) -> None:
        member.sock.settimeout(max(0.1, ends - time.monotonic()))
        got = b""
        while b"\r\n\r\n" not in got:
            more = member.sock.recv(65536)
            if not more:
                break
            got += more
        head, _, member.buffer = got.partition(b"\r\n\r\n")
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise AssertionError(f"no websocket: {got[:200]!r}")
        member.sock.setblocking(False)
        self.members[member.sock.fileno()] = member
        self._epoll.register(member.sock, select.EPOLLIN)

    def say(self, frame: Mapping[str, Any], whom: Sequence[Member] | None = None) -> None:
        """This frame from all, or from these."""
        data = _frame(TEXT, json.dumps(frame).encode())
        for member in list(self.members.values()) if whom is None else whom:
            member.sock.sendall(data)

    def expect(self, marker: bytes, seconds: float, whom: Sequence[Member] | None = None) -> float:
        """Read until each of all (or of these) had a frame with `marker` in it; answers when the last one came (perf_counter)."""
        missing = set(self.members) if whom is None else {member.sock.fileno() for member in whom}
        ends, last = time.monotonic() + seconds, time.perf_counter()
        for number, member in self.members.items():
            # What came with the handshake.
            if member.buffer and number in missing and any(marker in text for text in self._frames(member, b"")):
                missing.discard(number)
        while missing:
            ready = self._epoll.poll(0.5, 2000)
            if not ready and time.monotonic() > ends:
                raise AssertionError(f"{len(missing)} of {len(self.members)} clients had no frame with {marker!r} in {seconds} s")
            for number, _ in ready:
                if any(marker in text for text in self._read(number)):
                    missing.discard(number)
            last = time.perf_counter()
        return last

    def idle(self, seconds: float) -> None:
        """Answer the server's pings for so long, and forget what else comes."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            for number, _ in self._epoll.poll(left, 2000):
                self._read(number)

    def keep(self) -> None:
        """What keeps a tab's connection alive, at most every ten seconds: a heartbeat, and answers to the server's pings."""
        if time.monotonic() - self._kept >= KEEP:
            self._kept = time.monotonic()
            self.say({"op": "ping", "have": {}})
            self.idle(0.1)

    def _read(self, number: int) -> list[bytes]:
        member = self.members[number]
        data = member.sock.recv(262_144)
        if not data:
            raise AssertionError("the server closed a client's connection")
        return self._frames(member, data)

    @staticmethod
    def _frames(member: Member, data: bytes) -> list[bytes]:
        """The texts that are whole now. Pings are answered."""
        data = member.buffer + data if member.buffer else data
        texts: list[bytes] = []
        at, size = 0, len(data)
        while size - at >= 2:
            kind, length, body = data[at] & 15, data[at + 1], at + 2
            if length >= 126:
                body += 2 if length == 126 else 8
                length = int.from_bytes(data[at + 2 : body], "big")
            if body + length > size:
                break
            at = body + length
            if kind == TEXT:
                texts.append(data[body:at])
            elif kind == PING:
                member.sock.sendall(_frame(PONG, data[body:at]))
            elif kind == CLOSE:
                raise AssertionError(f"the server closed a client: {data[body:at]!r}")
        member.buffer = data[at:]
        return texts


def _frame(kind: int, body: bytes) -> bytes:
    """One frame of a client; its mask is all zero, which leaves the body as it is."""
    size = len(body)
    head = bytes([0x80 | kind, 0x80 | size]) if size < 126 else bytes([0x80 | kind, 0x80 | 126]) + size.to_bytes(2, "big")
    return head + bytes(4) + body
