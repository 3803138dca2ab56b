"""The routes of the web console: the page, its feeds, explanations, traces and actions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from cotenant import __version__
from cotenant.errors import ConfigError, CotenantError
from cotenant.node.client.explain import explain, explanation_json
from cotenant.node.directories import Directories
from cotenant.timeline.recorder import encode_trace, record
from cotenant.web.access import WebAccess
from cotenant.web.actions import carry_out, decode_action
from cotenant.web.device_delays import DeviceDelays
from cotenant.web.event_view import EventView
from cotenant.web.feeds import Feed, stream
from cotenant.web.http import Request, Response
from cotenant.web.node_view import NodeView
from cotenant.web.server_view import ServerView
from cotenant.web.static import StaticFiles
from cotenant.web.timeline_view import TimelineView

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode
_TIMELINE_WINDOW_MS: Final = 300
_TRACE_SECONDS_LIMIT: Final = 10.0
_CLUSTER_PERIODS: Final = 5
"""A cluster changes slowly, and its API is shared: it is read less often."""
_TIMELINES_LIMIT: Final = 16


class ClusterSource(Protocol):
    """Reads a Kubernetes cluster; it is not imported here, because its packages are an extra."""

    def read(self) -> Any:
        """Return the cluster as JSON values."""

    def close(self) -> None:
        """Close connections, because no page shows the cluster."""


class Console:
    """Answers the requests of browsers."""

    def __init__(
        self,
        directories: Directories,
        own: Directories,
        access: WebAccess,
        cluster: ClusterSource,
        server: ServerView,
        period_s: float,
    ) -> None:
        """`directories` are those of the node, `own` those of the caller: his programs write their buffers there.

        `period_s` is the time between two readings of the node.
        """
        self._directories = directories
        self._own = own
        self._access = access
        self._files = StaticFiles()
        self._period_s = period_s
        self._timeline = TimelineView(own)
        self._node_feed_view = NodeView(directories)
        delays, delay_view, events = DeviceDelays(own), NodeView(directories), EventView(directories)

        def reset_delays() -> None:
            delays.reset()
            delay_view.reset()

        self._feeds = {
            "node": Feed("node", self._node_feed_view.read, period_s, on_idle=self._node_feed_view.reset),
            "delays": Feed("delays", lambda: delays.read(delay_view.read()), period_s, on_idle=reset_delays),
            "events": Feed("events", events.read, period_s, on_idle=events.close),
            "cluster": Feed("cluster", cluster.read, period_s * _CLUSTER_PERIODS, on_idle=cluster.close),
            "server": Feed("server", server.read, period_s, on_idle=server.reset),
        }
        self._timelines: dict[tuple[int, int], Feed] = {}
        self._routes: dict[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", "/api/about"): self._about,
            ("GET", "/api/stream"): self._stream,
            ("GET", "/api/explain"): self._explain,
            ("GET", "/api/trace"): self._trace,
            ("POST", "/api/act"): self._act,
            ("POST", "/api/login"): self._login,
        }
        self._trace_lock = asyncio.Lock()

    @property
    def is_built(self) -> bool:
        """Whether the page exists."""
        return self._files.is_built

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        if not self._access.is_own_host(request):
            return _problem(403, "this server is not called that; start it with --allow-host NAME to allow the name")
        is_read = request.method in ("GET", "HEAD")
        if is_read and not request.path.startswith("/api/"):
            return self._files.respond(request)
        route = self._routes.get(("GET" if is_read else request.method, request.path))
        if route is None:
            return _problem(404, "there is no such address")
        try:
            return await route(request)
        except ConfigError as error:
            return _problem(400, str(error))
        except CotenantError as error:
            return _problem(409, str(error))

    async def _about(self, request: Request) -> Response:
        """Say what the reader may do; the page asks this first."""
        may_read = self._access.may_read(request)
        return _json(
            {
                "version": __version__ if may_read else "",
                "may_read": may_read,
                "may_act": self._access.may_act(request),
                "can_operate": self._access.may_operate,
                "period_ms": round(self._period_s * 1000),
            }
        )

    async def _login(self, request: Request) -> Response:
        try:
            token = msgspec.json.decode(request.body, type=dict[str, str]).get("token", "")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            token = ""
        if not self._access.is_from_own_page(request) or not self._access.is_token(token):
            await asyncio.sleep(1)  # guessing is slow
            return _problem(401, "this is not the token; `cotenant web` prints it")
        return Response(204, headers={"Set-Cookie": self._access.cookie()})

    async def _stream(self, request: Request) -> Response:
        if not self._access.may_read(request):
            return _denied()
        feeds = []
        for name in request.query.get("topics", "node").split(","):
            feed = self._timeline_feed(request) if name == "timeline" else self._feeds.get(name)
            if feed is None:
                return _problem(400, f"there is no topic {name!r}")
            if feed not in feeds:
                feeds.append(feed)
        return Response(200, b"", "text/event-stream; charset=utf-8", stream=stream(feeds))

    def _timeline_feed(self, request: Request) -> Feed:
        gpu = _number(request, "gpu", 0, 1024)
        window_ms = _number(request, "window_ms", _TIMELINE_WINDOW_MS, 1000)
        feed = self._timelines.get((gpu, window_ms))
        if feed is None:
            view = NodeView(self._directories)

            def read() -> Any:
                return self._timeline.read(view.read(), gpu, window_ms * 1_000_000)

            def forget() -> None:
                view.reset()
                self._timelines.pop((gpu, window_ms), None)

            if len(self._timelines) >= _TIMELINES_LIMIT:
                raise ConfigError("gpu", gpu, f"{_TIMELINES_LIMIT} timelines are open; close another page")
            feed = Feed("timeline", read, max(self._period_s, 1.0), on_idle=forget)
            self._timelines[gpu, window_ms] = feed
        return feed

    async def _explain(self, request: Request) -> Response:
        if not self._access.may_read(request):
            return _denied()
        name = request.query.get("tenant", "")
        explanation = await asyncio.to_thread(explain, self._directories, name, lambda _: None)
        return _json(explanation_json(explanation))

    async def _trace(self, request: Request) -> Response:
        """Record for some seconds and return the timeline as a file for Perfetto; one recording at a time."""
        if not self._access.may_read(request):
            return _denied()
        seconds = _number(request, "seconds", 2, int(_TRACE_SECONDS_LIMIT))
        async with self._trace_lock:
            recording = await asyncio.to_thread(record, self._own, float(seconds), lambda _: None)
            data = await asyncio.to_thread(encode_trace, recording)
        headers = {"Content-Disposition": 'attachment; filename="cotenant-trace.json"'}
        return Response(200, data, "application/json", headers)

    async def _act(self, request: Request) -> Response:
        if not self._access.may_operate:
            return _problem(403, "this console is read-only; start it with: cotenant web --operate")
        if not self._access.is_from_own_page(request) or not self._access.may_act(request):
            return _problem(403, "enter the token first; `cotenant web` prints it")
        action = decode_action(request.body)
        return _json(await asyncio.to_thread(carry_out, self._directories, action))


def _number(request: Request, name: str, default: int, largest: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) <= largest):
        raise ConfigError(name, text, f"write a whole number up to {largest}")
    return int(text)


def _json(value: Any) -> Response:
    return Response(200, _encode(value))


def _denied() -> Response:
    return _problem(401, "enter the token; `cotenant web` prints it")


def _problem(status: int, text: str) -> Response:
    return Response(status, _encode({"problem": text}))
