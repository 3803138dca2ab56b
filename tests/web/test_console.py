"""The web console over HTTP: who may read, who may act, what it sends, and what it costs without a page."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import Queue
from typing import Any, TypeAlias

import pytest

from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.node.client.connection import Connection
from cotenant.node.directories import Directories
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from cotenant.web.access import ACTION_HEADER, COOKIE, WebAccess
from cotenant.web.actions import decode_action
from cotenant.web.console import Console
from cotenant.web.feeds import Feed, stream
from cotenant.web.http import HttpServer, Request
from cotenant.web.server_view import ServerView
from tests.support.node_in_process import BOUND_S, InProcessNode, NodeThread, join
from tests.support.node_processes import NodeHarness, until

LOOPBACK = ("127.0.0.1", 1)


def request_of(**headers: str) -> Request:
    return Request("GET", "/", {}, {"host": "127.0.0.1:7070", **headers}, b"", ("192.0.2.7", 9), LOOPBACK)


@pytest.fixture
def access() -> WebAccess:
    return WebAccess("s3cret", ("console.example",), may_operate=True, is_secure=True)


@pytest.mark.parametrize(
    "host, is_own",
    [
        ("127.0.0.1:7070", True),
        ("[::1]:7070", True),
        ("localhost:7070", True),
        ("console.example", True),
        ("evil.example", False),
        ("", False),
    ],
)
def test_foreign_names_are_refused_because_of_dns_rebinding(access: WebAccess, host: str, is_own: bool) -> None:
    assert access.is_own_host(request_of(host=host)) is is_own


def test_a_client_on_another_machine_needs_the_token(access: WebAccess) -> None:
    assert not access.may_read(request_of())
    assert not access.may_read(request_of(cookie=f"{COOKIE}=wrong"))
    assert access.may_read(request_of(cookie=f"a=b; {COOKIE}=s3cret"))
    assert access.may_act(request_of(authorization="Bearer s3cret"))
    assert "HttpOnly; SameSite=Strict" in access.cookie()
    assert "; Secure" in access.cookie()


def test_a_read_only_console_refuses_actions_even_with_the_token() -> None:
    access = WebAccess("s3cret", (), may_operate=False, is_secure=False)
    assert access.may_read(request_of(cookie=f"{COOKIE}=s3cret"))
    assert not access.may_act(request_of(cookie=f"{COOKIE}=s3cret"))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"action":"set","tenant":"a","priority":10}', b"\xff"])
def test_a_malformed_action_is_refused_with_one_sentence(body: bytes) -> None:
    with pytest.raises(ConfigError, match="this is no action"):
        decode_action(body)


def test_a_feed_is_read_only_while_a_page_follows_it_and_a_page_gets_what_another_reads() -> None:
    async def scenario() -> None:
        idles: list[int] = []
        feed = Feed("node", lambda: {"n": feed.readings}, 0.01, on_idle=lambda: idles.append(feed.readings))
        await asyncio.sleep(0.05)
        assert feed.readings == 0
        first, second = stream([feed]), stream([feed])
        for page in (first, second):
            assert (await anext(page)).startswith(b"retry: ")
        assert (await anext(first)).startswith(b"event: node\ndata: {")
        assert (await anext(second)).startswith(b"event: node\ndata: {")
        await first.aclose()  # type: ignore[attr-defined]
        assert idles == []
        assert (await anext(second)).startswith(b"event: node\ndata: {")
        await second.aclose()  # type: ignore[attr-defined]
        readings = feed.readings
        assert len(idles) == 1
        await asyncio.sleep(0.05)
        assert feed.readings <= readings + 1  # a reading that had begun may still end

    asyncio.run(scenario())


class Browser:
    """Sends requests to a console."""

    def __init__(self, url: str) -> None:
        self.authority = url.removeprefix("http://").partition("/")[0]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        connection = http.client.HTTPConnection(self.authority, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read()
            fields = {name.lower(): value for name, value in response.getheaders()}
            is_json = fields.get("content-type", "").startswith("application/json")
            return response.status, fields, json.loads(text) if is_json and text else text
        finally:
            connection.close()

    def first_event(self, topics: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.authority, timeout=60)
        try:
            connection.request("GET", f"/api/stream?topics={topics}")
            response = connection.getresponse()
            assert response.status == 200
            while not (line := response.fp.readline()).startswith(b"data: "):
                assert line, "the stream ended"
            event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return event
        finally:
            connection.close()


class _NoCluster:
    def read(self) -> Any:
        return {"problem": "there is none"}

    def close(self) -> None:
        """Hold nothing."""


TOKEN = "t" * 32
Served: TypeAlias = tuple[Browser, InProcessNode]


@pytest.fixture
def console() -> Iterator[Served]:
    """Serve the console of a node with two tenants, both in this process."""
    with InProcessNode(gpus=(Gpu("v100", 1 << 34),)) as node, ExitStack() as stack:
        web = TenantSpec(Kind.ONLINE, 2, "web", slo_ns=50_000_000)
        for spec in (web, TenantSpec(Kind.OFFLINE, 7, "job", memory_bytes=2 << 30)):
            join(stack.enter_context(Connection(node.path, BOUND_S)), spec)
        access = WebAccess(TOKEN, (), may_operate=True, is_secure=False)
        directories = Directories(node.home, node.home)
        address: Queue[int] = Queue()

        async def serve() -> None:
            pages = Console(directories, directories, access, _NoCluster(), ServerView("127.0.0.1:1"), 0.2)
            server = await HttpServer(pages.respond).start("127.0.0.1", 0, None)
            stop = asyncio.Event()
            stops.append(lambda: loop.call_soon_threadsafe(stop.set))
            loop = asyncio.get_running_loop()
            address.put(server.sockets[0].getsockname()[1])
            await stop.wait()
            server.close()

        stops: list[Callable[[], object]] = []
        thread = NodeThread(lambda: asyncio.run(serve()))
        yield Browser(f"http://127.0.0.1:{address.get(timeout=BOUND_S)}/"), node
        stops[0]()
        thread.join()


@pytest.mark.live
def test_a_reader_sees_the_node_and_only_the_token_acts(console: Served) -> None:
    browser, served_node = console
    status, fields, about = browser.ask("GET", "/api/about")
    assert (status, about["may_read"], about["may_act"]) == (200, True, False)
    assert fields["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in fields["content-security-policy"]
    node = browser.first_event("node")
    assert [(tenant["name"], tenant["slo_ns"]) for tenant in node["tenants"]] == [("web", 50_000_000), ("job", 0)]
    assert "joined" in {event["event"] for event in browser.first_event("events")["events"]}
    pause = {"action": "pause", "tenant": "job"}
    cookie = f"{COOKIE}={TOKEN}"
    own_page = {ACTION_HEADER: "1"}
    assert browser.ask("POST", "/api/act", pause, **own_page)[0] == 403
    assert browser.ask("POST", "/api/act", pause, cookie=cookie)[0] == 403, "another site could send this"
    assert browser.ask("POST", "/api/act", pause, cookie=cookie, **own_page)[0] == 200
    assert {view.tenant.name for view in served_node.honest().tenants if view.tenant.paused} == {"job"}
    several = {"action": "set", "tenant": "job", "priority": 8, "memory": "3GiB", "share": "20%"}
    assert browser.ask("POST", "/api/act", several, cookie=cookie, **own_page)[0] == 200
    grant = next(view.tenant.grant for view in served_node.honest().tenants if view.tenant.name == "job")
    assert (grant.priority, grant.memory_bytes, grant.share_ppm) == (8, 3 << 30, 200_000)
    status, _, problem = browser.ask("POST", "/api/act", {**pause, "tenant": "none"}, cookie=cookie, **own_page)
    assert (status, "none" in problem["problem"]) == (400, True)


@pytest.mark.live
def test_hostile_requests_get_an_answer_and_the_console_stays(console: Served) -> None:
    browser, _ = console
    assert browser.ask("GET", "/api/about", host="evil.example")[0] == 403
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../console.py", "/api/none"):
        assert browser.ask("GET", path)[0] == 404
    assert browser.ask("GET", "/api/stream?topics=secrets")[0] == 400
    assert browser.ask("GET", "/api/stream?topics=timeline&gpu=x")[0] == 400
    assert browser.ask("GET", "/api/explain?tenant=..%2F..")[0] == 400
    assert browser.ask("POST", "/api/login", {"token": "x"}, **{ACTION_HEADER: "1"})[0] == 401
    assert browser.ask("GET", "/api/about", filler="x" * 20_000)[0] == 431
    assert browser.ask("POST", "/api/act", "x" * 70_000)[0] == 413
    assert browser.ask("GET", "/api/about")[0] == 200


@pytest.mark.live
def test_a_node_serves_and_ends_its_own_console(node_harness: NodeHarness) -> None:
    node = node_harness.node("--gpu", "a=16GiB", "--web", "127.0.0.1:0")
    assert node.stderr is not None
    line = until(lambda: next((line for line in iter(node.stderr.readline, "") if "web console:" in line), ""))  # type: ignore[union-attr]
    browser = Browser(line.split()[-1])
    assert browser.first_event("node")["node"]["pid"] == node.pid
    assert browser.ask("POST", "/api/act", {"action": "pause", "tenant": "a"}, **{ACTION_HEADER: "1"})[0] == 403
    node.terminate()
    assert node.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        browser.ask("GET", "/api/about")
