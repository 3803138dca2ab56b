"""Run, list, watch and change the tenants of this machine's node from Python, with and without asyncio.

import cotenant

node = cotenant.Node()
with node.run(["python", "serve.py"], name="web", online=True, slo="50ms") as web:
    print(node.tenants())
    node.set("web", slo="40ms", memory="4GiB")
    web.wait()
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import html
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from cotenant.errors import WorldError
from cotenant.node.client.commands import evict, set_paused, set_tenant
from cotenant.node.client.connection import list_tenants
from cotenant.node.client.events import EventFilter, event_json, read_events
from cotenant.node.client.explain import Explanation, explain
from cotenant.node.client.service import stop_node
from cotenant.node.config.file import DirectoriesConfig
from cotenant.node.directories import Directories, client_directories, resolve_directories
from cotenant.runner.clock import pause
from cotenant.softgpu import manage
from cotenant.timeline.recorder import TraceSummary, record, write
from cotenant.units.text import parse_duration, parse_share, parse_size, round_duration, round_share, round_size
from cotenant.web.node_view import NodeView

_JOIN_TRIES = 600
_JOIN_PERIOD_S = 0.1
_STOP_NS = 60 * 10**9


class TenantInfo(NamedTuple):
    """A tenant of a node and, if it was measured, what it did in the last period."""

    name: str
    kind: str
    """"online" or "offline"."""
    gpu: int
    priority: int
    state: str
    memory_bytes: int
    """Reserved device memory; 0: none."""
    held_bytes: int
    share_ppm: int
    slo_ns: int
    p99_ns: int
    """0: no request ended."""
    launches_per_s: float
    device_ppm: int
    waited_ppm: int
    pid: int


class TenantTable(list[TenantInfo]):
    """Tenants at one instant; a table in Jupyter."""

    def __getitem__(self, key: Any) -> Any:
        """Return a tenant by position or by name."""
        if isinstance(key, str):
            for tenant in self:
                if tenant.name == key:
                    return tenant
            raise KeyError(key)
        return super().__getitem__(key)

    def _rows(self) -> list[list[str]]:
        rows = [["tenant", "kind", "GPU", "priority", "state", "memory", "device", "p99", "objective", "kernels"]]
        for tenant in self:
            of = f" of {round_size(tenant.memory_bytes)}" if tenant.memory_bytes else ""
            rows.append(
                [
                    tenant.name,
                    tenant.kind,
                    "-" if tenant.gpu < 0 else str(tenant.gpu),
                    str(tenant.priority),
                    tenant.state,
                    f"{round_size(tenant.held_bytes)}{of}",
                    round_share(min(tenant.device_ppm, 1_000_000)),
                    round_duration(tenant.p99_ns) if tenant.p99_ns else "-",
                    round_duration(tenant.slo_ns) if tenant.slo_ns else "-",
                    f"{tenant.launches_per_s:.0f}/s",
                ]
            )
        return rows

    def __str__(self) -> str:
        """Return the table as text."""
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head, *body = self._rows()
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in body)
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"


class RunningTenant:
    """A program that this process started as a tenant; leaving the `with` block ends it."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self.name = name
        self._process = process
        self._errors = errors
        self._error_text = ""

    @property
    def returncode(self) -> int | None:
        """Return the exit code; None while the program runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        code = self._process.wait(timeout_s)
        self._keep_errors()
        return code

    def output(self) -> str:
        """Wait for the end and return what the program wrote to standard output, if it was started with `capture`."""
        text = self._process.communicate()[0] or ""
        self._keep_errors()
        return text

    def errors(self) -> str:
        """Return what the program has written to standard error so far, and what `cotenant run` reported there."""
        if not self._errors.closed:
            self._error_text = _contents(self._errors)
        return self._error_text

    def stop(self) -> int:
        """Ask the program to end, wait, and return its exit code; the node kills it after its grace period."""
        if self._process.poll() is None:
            self._process.terminate()
        return self.wait()

    def _keep_errors(self) -> None:
        """Close the file of the errors after the end of the program; its contents can still be read."""
        self.errors()
        self._errors.close()

    def __enter__(self) -> Self:
        """Return the tenant."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program; its errors can still be read."""
        self.stop()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __repr__(self) -> str:
        """Return the name and the state."""
        code = self.returncode
        return f"<tenant {self.name}: {'running' if code is None else f'exit {code}'}>"


def _contents(file: IO[str]) -> str:
    """Return the contents of a file that another process writes; its own position stays at the end."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


class Node:
    """The node of this machine, or the one whose files are below `directory`."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._environ = dict(os.environ) if directory is None else {**os.environ, "COTENANT_DIRECTORY": str(directory)}
        config = DirectoriesConfig()
        own = resolve_directories(config, self._environ, os.geteuid())
        self.directories: Directories = client_directories(own, self._environ, config)
        self._view = NodeView(self.directories)

    def run(  # noqa: PLR0913  as many as the command line has flags for it
        self,
        command: Sequence[str],
        *,
        name: str,
        online: bool = False,
        slo: str = "",
        memory: str = "",
        share: str = "",
        gpu: str = "",
        priority: int | None = None,
        environment: Mapping[str, str] | None = None,
        capture: bool = False,
    ) -> RunningTenant:
        """Start a program as a tenant and return when it has its slot; a node is started if none runs.

        Values have units, as on the command line: slo="50ms", memory="4GiB", share="30%", gpu="soft:0". With `capture`
        its standard output is kept for `output()`. A refused tenant raises `WorldError` with the node's reason.
        """
        words = ["run", "--name", name, "--online" if online else "--offline"]
        fields = {"slo": slo, "memory": memory, "share": share, "gpu": gpu}
        words += [word for field, value in fields.items() if value for word in (f"--{field}", value)]
        words += [] if priority is None else ["--priority", str(priority)]
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  the tenant closes it
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "cotenant", *words, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if capture else None,
            stderr=errors,
            env={**self._environ, **(environment or {})},
            text=True,
        )
        tenant = RunningTenant(name, process, errors)
        for _ in range(_JOIN_TRIES):
            if process.poll() is not None or self._has(name):
                break
            pause(_JOIN_PERIOD_S)
        if process.poll() not in (None, 0) and not self._ran(name):
            last = (tenant.errors().strip().splitlines() or ["no message"])[-1]
            failure = WorldError(f"{name} did not start: {last.removeprefix('cotenant: ')}")
            failure.exit_code = process.returncode
            with tenant:
                raise failure
        return tenant

    def tenants(self) -> TenantTable:
        """Return the tenants that the caller may see; rates are relative to the previous call."""
        return TenantTable(
            TenantInfo(
                tenant["name"],
                tenant["kind"],
                tenant["gpu"],
                tenant["priority"],
                tenant["state"] if tenant["phase"] == "running" else tenant["phase"],
                tenant["quota_bytes"],
                tenant["held_bytes"],
                tenant["share_ppm"],
                tenant["slo_ns"],
                tenant.get("p99_ns", 0),
                tenant["launches_per_s"],
                tenant["device_ppm"],
                tenant["waited_ppm"],
                tenant["pid"],
            )
            for tenant in self._view.read()["tenants"]
        )

    def metrics(self) -> dict[str, Any]:
        """Return GPUs, tenants and delays as JSON values, as the web console shows them."""
        return self._view.read()

    def watch(self, period_s: float = 1.0) -> Iterator[TenantTable]:
        """Yield the tenants once per period, without end."""
        self.tenants()
        while True:
            pause(period_s)
            yield self.tenants()

    def pause(self, *names: str) -> list[str]:
        """Stop tenants from launching GPU work."""
        return set_paused(self.directories, names, all_offline=False, paused=True).tenants

    def resume(self, *names: str) -> list[str]:
        """Allow paused tenants to launch GPU work again."""
        return set_paused(self.directories, names, all_offline=False, paused=False).tenants

    def evict(self, *names: str, grace: str | None = None) -> list[str]:
        """End tenants gracefully."""
        return evict(self.directories, names, grace).tenants

    def set(
        self,
        name: str,
        *,
        priority: int | None = None,
        slo: str | None = None,
        share: str | None = None,
        limit: str | None = None,
        memory: str | None = None,
    ) -> None:
        """Change values of a tenant; None: unchanged."""
        set_tenant(
            self.directories,
            name,
            priority=priority,
            slo_ns=None if slo is None else parse_duration(slo, field="slo"),
            share_ppm=None if share is None else parse_share(share, field="share"),
            limit=limit,
            memory_bytes=None if memory is None else parse_size(memory, field="memory"),
        )

    def events(self, *, tenant: str = "", since: str = "") -> list[dict[str, object]]:
        """Return the events of the node, oldest first."""
        since_ns = parse_duration(since, field="since") if since else None
        events = read_events(self.directories, EventFilter(tenant, None, since_ns), lambda _: None, follow=False)
        return [event_json(event) for event in events]

    def explain(self, name: str) -> Explanation:
        """Return why a tenant waits, or why it was refused, evicted or ended."""
        return explain(self.directories, name, lambda _: None)

    def trace(self, path: str | os.PathLike[str], seconds: float = 2.0) -> TraceSummary:
        """Record launches and kernels for some seconds, and write a timeline for Perfetto."""
        return write(record(self.directories, seconds, lambda _: None), str(path))

    def _has(self, name: str) -> bool:
        with contextlib.suppress(WorldError):
            return any(view.tenant.name == name for view in list_tenants(self.directories).tenants)
        return False

    def _ran(self, name: str) -> bool:
        with contextlib.suppress(WorldError):
            return any(departure.tenant.name == name for departure in list_tenants(self.directories).departed)
        return False

    def __repr__(self) -> str:
        """Return where the node is."""
        return f"<node at {self.directories.runtime}>"


class AsyncTenant:
    """A program that was started with `AsyncNode`; leaving the `async with` block ends it."""

    def __init__(self, tenant: RunningTenant) -> None:
        self.tenant = tenant

    @property
    def name(self) -> str:
        """Return the name."""
        return self.tenant.name

    @property
    def returncode(self) -> int | None:
        """Return the exit code; None while the program runs."""
        return self.tenant.returncode

    async def wait(self) -> int:
        """As `RunningTenant.wait`."""
        return await asyncio.to_thread(self.tenant.wait)

    async def output(self) -> str:
        """As `RunningTenant.output`."""
        return await asyncio.to_thread(self.tenant.output)

    def errors(self) -> str:
        """As `RunningTenant.errors`."""
        return self.tenant.errors()

    async def stop(self) -> int:
        """As `RunningTenant.stop`."""
        return await asyncio.to_thread(self.tenant.stop)

    async def __aenter__(self) -> Self:
        """Return the tenant."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program."""
        await asyncio.to_thread(self.tenant.__exit__, kind, error, trace)

    def __repr__(self) -> str:
        """Return the name and the state."""
        return repr(self.tenant)


class AsyncNode:
    """The same for asyncio: every method of `Node` that asks the node, as a coroutine."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.node = Node(directory)

    async def run(  # noqa: PLR0913  as `Node.run`
        self,
        command: Sequence[str],
        *,
        name: str,
        online: bool = False,
        slo: str = "",
        memory: str = "",
        share: str = "",
        gpu: str = "",
        priority: int | None = None,
        environment: Mapping[str, str] | None = None,
        capture: bool = False,
    ) -> AsyncTenant:
        """As `Node.run`."""
        start = functools.partial(self.node.run, command, name=name, online=online, slo=slo, memory=memory, share=share)
        start = functools.partial(start, gpu=gpu, priority=priority, environment=environment, capture=capture)
        return AsyncTenant(await asyncio.to_thread(start))

    async def tenants(self) -> TenantTable:
        """As `Node.tenants`."""
        return await asyncio.to_thread(self.node.tenants)

    async def metrics(self) -> dict[str, Any]:
        """As `Node.metrics`."""
        return await asyncio.to_thread(self.node.metrics)

    async def watch(self, period_s: float = 1.0) -> AsyncIterator[TenantTable]:
        """As `Node.watch`."""
        await self.tenants()
        while True:
            await asyncio.sleep(period_s)
            yield await self.tenants()

    async def pause(self, *names: str) -> list[str]:
        """As `Node.pause`."""
        return await asyncio.to_thread(self.node.pause, *names)

    async def resume(self, *names: str) -> list[str]:
        """As `Node.resume`."""
        return await asyncio.to_thread(self.node.resume, *names)

    async def evict(self, *names: str, grace: str | None = None) -> list[str]:
        """As `Node.evict`."""
        return await asyncio.to_thread(self.node.evict, *names, grace=grace)

    async def set(
        self,
        name: str,
        *,
        priority: int | None = None,
        slo: str | None = None,
        share: str | None = None,
        limit: str | None = None,
        memory: str | None = None,
    ) -> None:
        """As `Node.set`."""
        change = functools.partial(self.node.set, name, priority=priority, slo=slo, share=share)
        await asyncio.to_thread(change, limit=limit, memory=memory)

    async def events(self, *, tenant: str = "", since: str = "") -> list[dict[str, object]]:
        """As `Node.events`."""
        return await asyncio.to_thread(self.node.events, tenant=tenant, since=since)

    async def explain(self, name: str) -> Explanation:
        """As `Node.explain`."""
        return await asyncio.to_thread(self.node.explain, name)

    async def trace(self, path: str | os.PathLike[str], seconds: float = 2.0) -> TraceSummary:
        """As `Node.trace`."""
        return await asyncio.to_thread(self.node.trace, path, seconds)


class SoftwareGpus:
    """Software GPUs and a node's directory of their own, which end with the `with` block."""

    def __init__(self, model: str = "v100", count: int = 1) -> None:
        # The path of a Unix socket has at most about 100 bytes, so the directory is a short one.
        self._directory = tempfile.TemporaryDirectory(prefix="cotenant-", dir="/tmp", ignore_cleanup_errors=True)
        self.directory = Path(self._directory.name)
        self.node = Node(self.directory)
        self._home = self.node.directories.runtime / "softgpu"
        self.node.directories.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.gpus = manage.create(self._home, model, count)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a program finds the GPUs without a node."""
        return manage.env(self._home)

    def __enter__(self) -> Self:
        """Return the GPUs."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the node, if one was started, and the GPUs."""
        self.close()

    def close(self) -> None:
        """End the node, if one was started, and the GPUs."""
        stop_node(self.node.directories, _STOP_NS, lambda _: None)
        manage.destroy(self._home)
        self._directory.cleanup()
