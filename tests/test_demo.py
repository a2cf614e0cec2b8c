"""`manage.py demo`: one command, real processes, and none left behind, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest
from websockets.asyncio.client import connect as ws_connect

from project.running import keeper, parts
from project.running.family import ChildFailed, Family
from tests.support import await_for, need, wait_for
from tests.support.processes import Process, free_port

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


def demo_env(folder: Path, **more: str) -> dict[str, str]:
    """The environment of somebody who has just cloned the project: nothing of the tests in it, data in `folder`."""
    ours = ("VISIBILITY", "REDIS_URL", "DJANGO", "DATABASE", "DEMO")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "DEMO_DIR": str(folder / "demo"), "DATABASE_URL": f"sqlite:///{folder / 'demo.sqlite3'}", **more}


def relatives(process: Process) -> list[int]:
    """The demo's children, found by the name of the family in their environment, and its keeper."""
    family = next((found for pid in children(process.pid) if (found := family_of(pid))), "")
    return [*keeper.relatives(family), *children(process.pid)] if family else []


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
    return found


def family_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        for pair in (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0"):
            if pair.startswith(f"{keeper.MARK}=".encode()):
                return pair.partition(b"=")[2].decode()
    return ""


def alive(pids: list[int]) -> list[int]:
    left = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                left.append(pid)
    return left


class Browser:
    """Enough of one to log in, read pages and send forms."""

    def __init__(self, url: str) -> None:
        self.url, self.jar = url, CookieJar()
        self.opener = build_opener(HTTPCookieProcessor(self.jar))

    def get(self, path: str) -> str:
        with self.opener.open(self.url + path, timeout=30) as answer:
            return str(answer.read().decode())

    def post(self, path: str, **fields: str) -> int:
        data = urlencode({"csrfmiddlewaretoken": self.cookie("csrftoken"), **fields}).encode()
        request = Request(self.url + path, data, {"Accept": "application/json"})  # noqa: S310
        try:
            with self.opener.open(request, timeout=30) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def cookie(self, name: str) -> str:
        return next((cookie.value or "" for cookie in self.jar if cookie.name == name), "")

    def log_in(self, name: str) -> None:
        page = self.get("/")
        found = re.search(rf'action="(/login-as/\d+/)">(?:(?!</form>).)*{name}', page, re.S)
        assert found, page
        assert self.post(found[1]) == 200


@contextlib.contextmanager
def running(folder: Path, *arguments: str, **env: str) -> Iterator[tuple[Process, int]]:
    port = free_port()
    command = [sys.executable, str(ROOT / "manage.py"), "demo", "--port", str(port), "--crowd", "50", *arguments]
    with Process(command, env=demo_env(folder, **env), cwd=ROOT) as process:
        process.wait_until(lambda: "Ctrl-C ends everything" in process.output, 90, "the demo says where it is")
        yield process, port


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, int]]:
    need("valkey")
    with running(tmp_path_factory.mktemp("demo"), "--quiet") as (process, port):
        yield process, port
        process.send(signal.SIGTERM)
        process.popen.wait(30)


@pytest.fixture
def ada(demo: tuple[Process, int]) -> Browser:
    browser = Browser(f"http://127.0.0.1:{demo[1]}")
    browser.log_in("Ada Lind")
    return browser


@pytest.fixture
def bo(demo: tuple[Process, int]) -> Browser:
    browser = Browser(f"http://127.0.0.1:{demo[1]}")
    browser.log_in("Bo Nakamura")
    return browser


@contextlib.asynccontextmanager
async def tab(browser: Browser, *resources: str) -> Any:
    """A socket of this browser that watches; yields {resource: data of the last frame}, kept up to date."""
    import asyncio

    last: dict[str, Any] = {}
    async with ws_connect(
        browser.url.replace("http", "ws") + "/ws/visibility/",
        additional_headers={"Cookie": f"sessionid={browser.cookie('sessionid')}"},
        origin=browser.url,  # type: ignore[arg-type]
    ) as socket_:
        await socket_.send(json.dumps({"op": "watch", "id": 1, "resources": list(resources)}))

        async def read() -> None:
            async for text in socket_:
                frame = json.loads(text)
                if frame["op"] == "update":
                    last[frame["resource"]] = frame["data"]
                elif frame["op"] == "error":
                    last[frame.get("resource") or "error"] = frame["code"]

        reader = asyncio.create_task(read())
        try:
            yield last
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader


def me(browser: Browser) -> str:
    found = re.search(r'data-user="(\d+)"', browser.get("/feed/"))
    assert found
    return found[1]


def test_console_names_the_address_and_the_superuser(demo: tuple[Process, int]) -> None:
    process, port = demo
    assert f"http://127.0.0.1:{port}/" in process.output
    assert re.search(r"user admin, password \S+", process.output)


def test_superuser_can_log_in_to_the_admin(demo: tuple[Process, int]) -> None:
    process, port = demo
    found = re.search(r"user admin, password (\S+)", process.output)
    assert found
    browser = Browser(f"http://127.0.0.1:{port}")
    browser.get("/admin/login/")
    browser.post("/admin/login/?next=/admin/", username="admin", password=found[1])
    assert "Log out" in browser.get("/admin/")


def test_every_page_answers(ada: Browser) -> None:
    for path in ("/", "/feed/", "/rooms/", "/rooms/1/", "/notifications/", "/tiles/", "/work/"):
        page = ada.get(path)
        assert "<h1" in page, path
        assert "data-socket" in page, path
        # Nothing inline: the policy of the page would not let it run.
        assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)|\sstyle=|\son[a-z]+=", page), path


def test_static_files_and_policy(ada: Browser) -> None:
    assert "--accent" in ada.get("/static/demo/demo.css")
    assert "visibility:update" in ada.get("/static/demo/demo.js")
    assert "<svg" in ada.get("/favicon.ico")
    with ada.opener.open(ada.url + "/feed/") as answer:
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]


async def test_a_post_reaches_a_follower_who_watches(ada: Browser, bo: Browser) -> None:
    async with tab(bo, f"feed:{me(bo)}") as shown:
        await await_for(lambda: shown, 10, "the first frame")
        assert ada.post("/feed/", text="The kettle sings <b>loud</b>") == 200
        feed = f"feed:{me(bo)}"
        await await_for(
            lambda: any(p["text"] == "The kettle sings <b>loud</b>" for p in shown[feed]["posts"]), 10, "the post arrives"
        )


def test_a_follower_who_comes_later_sees_the_post(ada: Browser, bo: Browser) -> None:
    bo.get("/feed/")
    assert ada.post("/feed/", text="Later & <i>safe</i>") == 200
    assert "Later &amp; &lt;i&gt;safe&lt;/i&gt;" in bo.get("/feed/")


async def test_unread_count_is_right_when_the_room_is_opened(ada: Browser, bo: Browser) -> None:
    bo.get("/rooms/5/")
    assert ada.post("/rooms/5/", text="one") == 200
    assert ada.post("/rooms/5/", text="two") == 200
    assert re.search(r'data-room="5"><span data-number>2<', bo.get("/rooms/"))
    bo.get("/rooms/5/")
    assert re.search(r'data-room="5" hidden><span data-number>0<', bo.get("/rooms/"))


async def test_fifteen_messages_are_one_notice(ada: Browser, bo: Browser) -> None:
    bo.post("/notifications/")
    for n in range(15):
        assert ada.post("/rooms/5/", text=f"message {n}") == 200
    page = bo.get("/notifications/")
    assert "15 new messages in Ada and Bo" in page
    assert page.count('class="card notice" data-key') == 1
    assert bo.post("/notifications/") == 200
    assert "You have seen everything" in bo.get("/notifications/")


async def test_who_is_here_and_who_types(ada: Browser, bo: Browser) -> None:
    async with tab(ada, "room:5", "here:5", "typing:5") as shown, tab(bo, "room:5") as other:
        await await_for(lambda: "room:5" in other and len(shown) == 3, 10, "both are in the room")
        assert bo.post("/rooms/5/here/") == 204
        await await_for(
            lambda: [p["name"] for p in shown["here:5"]["people"]] == ["Ada Lind", "Bo Nakamura"], 10, "both names are shown"
        )
        assert bo.post("/rooms/5/typing/", still="1") == 204
        await await_for(lambda: [p["name"] for p in shown["typing:5"]["people"]] == ["Bo Nakamura"], 10, "Bo is typing")


async def test_tiles_change_by_events_from_outside(ada: Browser) -> None:
    async with tab(ada, "tile:copper") as shown:
        await await_for(lambda: shown, 10, "the first frame")
        before = shown["tile:copper"]["value"]
        assert ada.post("/tiles/copper/change/") == 200
        await await_for(lambda: shown["tile:copper"]["value"] != before, 10, "the new price")


async def test_work_page_counts_against_everybody(ada: Browser) -> None:
    async with tab(ada, "work:all") as shown:
        await await_for(lambda: shown, 10, "the first frame")
        before = shown["work:all"]
        assert ada.post("/work/story/") == 200
        await await_for(lambda: shown["work:all"]["everybody"] > before["everybody"] + 50, 10, "the fan-out is counted")
        assert shown["work:all"]["done"] - before["done"] < 20


async def test_nobody_watches_what_is_not_theirs(ada: Browser, bo: Browser) -> None:
    async with tab(bo, f"feed:{me(ada)}", "room:3", f"badge:{me(ada)}") as shown:
        await await_for(lambda: len(shown) == 3, 10, "three answers")
        assert set(shown.values()) == {"forbidden"}


def test_other_peoples_rooms_and_bad_input(bo: Browser) -> None:
    assert bo.post("/rooms/3/", text="hello") == 404
    assert bo.post("/feed/", text="   ") == 400
    assert bo.post("/feed/", text="x" * 501) == 400
    assert bo.post("/rooms/5/", text="") == 400
    assert bo.post("/tiles/nothing/change/") == 404
    assert bo.post("/login-as/999999/") == 404


def test_login_as_never_gives_staff(demo: tuple[Process, int]) -> None:
    browser = Browser(f"http://127.0.0.1:{demo[1]}")
    page = browser.get("/")
    assert "admin" not in re.findall(r"<button class=\"card person-card\">.*?</button>", page, re.S)
    people = {int(pk) for pk in re.findall(r"/login-as/(\d+)/", page)}
    others = set(range(1, max(people) + 60)) - people
    assert {browser.post(f"/login-as/{pk}/") for pk in others} == {404}


def test_sigterm_leaves_no_child(tmp_path: Path) -> None:
    need("valkey")
    with running(tmp_path) as (process, port):
        # keeper, valkey, server, the workers and one for each lane, life
        wait_for(lambda: len(set(relatives(process))) >= 7, 30, "all of them run")
        family = relatives(process)
        process.send(signal.SIGTERM)
        assert process.popen.wait(30) == 0
        assert "no process is left" in process.output
        assert alive(family) == []
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_ctrl_c_leaves_no_child_and_a_second_start_keeps_the_data_unless_asked_not_to(tmp_path: Path) -> None:
    need("valkey")
    with running(tmp_path, "--server", "uvicorn", "--quiet") as (process, port):
        browser = Browser(f"http://127.0.0.1:{port}")
        browser.log_in("Ada Lind")
        assert browser.post("/feed/", text="still here tomorrow") == 200
        password = re.search(r"password (\S+)", process.output)
        family = relatives(process)
        process.send(signal.SIGINT)
        assert process.popen.wait(30) == 0
        assert alive(family) == []
    with running(tmp_path, "--server", "uvicorn", "--quiet") as (process, port):
        browser = Browser(f"http://127.0.0.1:{port}")
        browser.log_in("Ada Lind")
        assert "still here tomorrow" in browser.get("/feed/")
        again = re.search(r"password (\S+)", process.output)
        assert password
        assert again
        assert password[1] == again[1]
        refused = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), "demo", "--port", str(free_port()), "--fresh"],
            env=demo_env(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert refused.returncode != 0
        assert "A demo runs on this data" in refused.stderr
    with running(tmp_path, "--server", "uvicorn", "--quiet", "--fresh") as (process, port):
        browser = Browser(f"http://127.0.0.1:{port}")
        browser.log_in("Ada Lind")
        assert "still here tomorrow" not in browser.get("/feed/")
        assert password[1] in process.output


def test_sigkill_of_the_command_takes_its_children_along(tmp_path: Path) -> None:
    need("valkey")
    with running(tmp_path, "--quiet") as (process, _port):
        family = relatives(process)
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: not alive(family), 10, "every child is gone")


def test_killed_workers_are_started_again_and_a_killed_valkey_ends_the_demo(tmp_path: Path) -> None:
    need("valkey")
    with running(tmp_path, "--quiet") as (process, port):
        crew = next(pid for pid in children(process.pid) if b"visibility_worker" in cmdline(pid))
        os.kill(crew, signal.SIGKILL)
        process.wait_until(lambda: "workers was killed by SIGKILL; started again" in process.output, 20)
        browser = Browser(f"http://127.0.0.1:{port}")
        browser.log_in("Ada Lind")
        valkey = next(pid for pid in relatives(process) if b"valkey" in cmdline(pid).split(b"\0")[0])
        family = relatives(process)
        os.kill(valkey, signal.SIGKILL)
        assert process.popen.wait(30) != 0
        assert "valkey was killed by SIGKILL; nothing works without it" in process.output
        assert alive(family) == []


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes()
    return b""


def run(*arguments: str, folder: Path, **env: str) -> tuple[int, str]:
    with Process([sys.executable, str(ROOT / "manage.py"), *arguments], env=demo_env(folder, **env), cwd=ROOT) as process:
        return process.popen.wait(60), process.output


def test_port_taken_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = run("demo", "--port", str(port), folder=tmp_path)
    assert code == 1
    assert (
        said.strip() == f"CommandError: Port {port} on 127.0.0.1 is taken. Choose another one: manage.py demo --port {port + 1}"
    )
    assert not (tmp_path / "demo.sqlite3").exists()


def test_redis_url_that_answers_nobody_is_one_clear_line(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    code, said = run("demo", "--port", str(free_port()), folder=tmp_path, REDIS_URL=url)
    assert code == 1
    assert f"No Redis answers at REDIS_URL={url}" in said
    assert "Traceback" not in said


def test_redis_url_in_the_environment_wins(tmp_path: Path, redis: Any, redis_server: Any) -> None:
    from django.conf import settings

    with running(tmp_path, "--quiet", REDIS_URL=settings.REDIS_URL) as (process, port):
        assert not any(b"valkey" in cmdline(pid).split(b"\0")[0] for pid in relatives(process))
        Browser(f"http://127.0.0.1:{port}").log_in("Ada Lind")
        wait_for(lambda: redis.exists("demo:meter"), 10, "the demo writes to that Redis")


def test_valkey_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "valkey-server"
    broken.write_text("#!/bin/sh\necho 'no memory today' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(parts, "binary", lambda scratch: broken)
    said = pytest.raises(parts.CannotStart, match=r"Valkey cannot start: valkey ended with 3.*\n.*no memory today")
    with Family(os.environ, tmp_path / "log") as family, contextlib.closing(parts.Valkey()) as valkey, said:
        valkey.start(family)


def test_child_that_dies_again_and_again_ends_the_family(tmp_path: Path) -> None:
    said: list[str] = []
    with Family(os.environ, tmp_path / "log", said.append) as family:
        family.start("hasty", [sys.executable, "-c", "import sys; print('cannot go on'); sys.exit(4)"])

        def watch() -> None:
            for _round in range(2_000):
                family.check()
                time.sleep(0.01)

        with pytest.raises(ChildFailed, match=r"hasty ended with code 4, 4 times within a minute.\ncannot go on"):
            watch()
    assert len(said) == 3


def test_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("project.running.family.GRACE", 0.5)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with Family(os.environ, tmp_path / "log") as family:
        child = family.start("deaf", [sys.executable, "-c", code])
        wait_for(lambda: "up" in child.tail(), 10, "it runs")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert alive([child.pid]) == []
