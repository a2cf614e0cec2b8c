"""The socket client against a server that only echoes: what it collects, waits for, and says when nothing comes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.support.sockets import connect


async def _echo(socket: ServerConnection) -> None:
    await socket.send(json.dumps({"op": "hello", "session": "s1", "cookie": socket.request.headers.get("Cookie", "")}))  # type: ignore[union-attr]
    async for text in socket:
        frame = json.loads(text)
        if frame["op"] == "watch":
            await socket.send(json.dumps({"op": "watched", "id": frame["id"], "resources": {}}))
            for resource in frame["resources"]:
                await socket.send(json.dumps({"op": "update", "resource": resource, "version": 7, "data": [1]}))
        elif frame["op"] == "ping":
            await socket.send(json.dumps({"op": "pong", "versions": frame["have"]}))
        else:
            await socket.close(4400)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serve(_echo, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_collects_frames_and_remembers_the_last(url: str) -> None:
    async with connect(url, session_key="abc") as tab:
        assert tab.session == "s1"
        assert tab.frames[0]["cookie"] == "sessionid=abc"
        await tab.watch("feed:1")
        await tab.data("feed:1", [1])
        assert tab.versions == {"feed:1": 7}
        assert (await tab.ping())["versions"] == {"feed:1": 7}


async def test_says_what_came_instead(url: str) -> None:
    async with connect(url, watch=["feed:1"]) as tab:
        await tab.expect("update", resource="feed:1")
        with pytest.raises(AssertionError, match="a frame revoked"):
            await tab.expect("revoked", 0.05)
        with pytest.raises(AssertionError, match=r"frames: .*version"):
            await tab.data("feed:1", [2], 0.05)


async def test_tells_the_close_code(url: str) -> None:
    async with connect(url) as tab:
        await tab.send({"op": "bad"})
        assert await tab.closed() == 4400


async def test_a_cut_is_no_goodbye(url: str) -> None:
    async with connect(url) as tab:
        tab.cut()
        assert await tab.closed() == 1006
