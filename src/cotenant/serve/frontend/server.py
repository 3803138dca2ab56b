"""Life cycle of the server: listen, load models, serve, drain and stop."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

from cotenant.errors import ConfigError
from cotenant.runner.clock import monotonic_ns
from cotenant.runner.thread_priority import request_low_latency
from cotenant.serve.frontend.access_log import AccessLog
from cotenant.serve.frontend.admin import NONE, POLL, AdminService
from cotenant.serve.frontend.engine import Engine
from cotenant.serve.frontend.listeners import BoundPorts, Listeners, ServeOptions
from cotenant.serve.frontend.server_settings import ServerLog
from cotenant.serve.frontend.shared_memory import SharedMemoryRegions
from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.runtime.model import ModelSource
from cotenant.serve.runtime.profiles import ProfileCache, model_hash
from cotenant.serve.runtime.repository import Repository
from cotenant.serve.runtime.runtime import ModelRuntime
from cotenant.units.instant import SECOND_NS

_SWITCH_INTERVAL_S: Final = 0.0005
"""Maximum time that a thread keeps the interpreter lock; the default of 5 ms would dominate tail latency."""
_LAG_INTERVAL_S: Final = 0.25
_OTHER_FILES: Final = 1024
T = TypeVar("T")


Report = Callable[[str], None]


def serve(options: ServeOptions, report: Report, ready: Callable[[BoundPorts, Sequence[str]], None]) -> int:
    """Serve until a signal; `ready` is called once with the ports and the models. Return the exit code."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    request_low_latency()
    needed = options.limits.connections + _OTHER_FILES
    allowed = allow_files(needed)
    if allowed < needed:
        report(f"this process may open only {allowed} files, fewer than --connections needs: raise ulimit -n")
    main = _Server(options, report, ready).run()
    try:
        import uvloop  # noqa: PLC0415  optional, much faster
    except ImportError:
        report("uvloop is not installed: the server runs at about a third of the speed")
        return asyncio.run(main)
    code: int = uvloop.run(main)
    return code


class _Profiles:
    """Looks up profiles and remembers which models have none."""

    def __init__(self, cache: ProfileCache, runtime: ModelRuntime) -> None:
        self._cache = cache
        self._runtime = runtime
        self.missing: list[str] = []

    def of(self, source: ModelSource) -> RunTimes | None:
        profile = self._cache.find(model_hash(source.path, source.name), self._runtime.identity)
        if profile is None:
            self.missing.append(source.name)
        return None if profile is None else profile.times


def allow_files(needed: int) -> int:
    """Raise the limit of open files; return the resulting limit, at most `needed`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def _abbreviated(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _without_profile(names: Sequence[str]) -> str:
    learned = "run times are learned while serving; `cotenant serve profile MODELS` measures them"
    return f"no profile of {_abbreviated(names)}: {learned}"


class _Server:
    def __init__(
        self, options: ServeOptions, report: Report, ready: Callable[[BoundPorts, Sequence[str]], None]
    ) -> None:
        self._options = options
        self._report = report
        self._ready = ready

    async def run(self) -> int:
        options = self._options
        loop = asyncio.get_running_loop()
        signals = _StopSignals(loop)
        limits, runtime = options.limits, options.runtime
        log = ServerLog(self._report)
        access_log = _open_access_log(options.access_log)
        regions = SharedMemoryRegions(limits.held_bytes, limits.body_bytes)
        engine = Engine(
            *(options.settings, runtime, loop, limits.held_bytes, options.spans),
            always=options.always_spans,
            regions=regions,
        )
        profiles = _Profiles(ProfileCache(options.profiles, self._report), runtime)
        repository = Repository(options.models, options.cores, runtime)
        admin = AdminService(engine, repository, log, profiles.of, options.control)
        listeners = Listeners(options, admin, access_log)
        ports = await listeners.open(loop)
        refused = await _first_of(signals.stop, admin.load_all())
        if refused is None:
            self._exit(engine, "stopped while models were loading", 0)
        if not engine.names() and options.control == NONE:
            self._exit(engine, "no model could be loaded", 1)
        if repository.partly_applied:
            some = _abbreviated(sorted(repository.partly_applied))
            self._report(
                f"config.pbtxt of {some} is only partly applied: `cotenant serve run MODELS --check` lists what differs"
            )
        if profiles.missing:
            self._report(_without_profile(profiles.missing))
        gc.collect()
        gc.freeze()  # loaded objects stay, so collections need not scan them
        self._ready(ports, engine.names())
        work = [listeners.sweep(), listeners.close_idle(), _measure_loop_lag(engine)]
        if options.control == POLL:
            work.append(_poll(admin, options.poll_s))
        tasks = [loop.create_task(each) for each in work]
        await signals.stop.wait()
        code = await self._shut_down(engine, listeners, signals.stop_now)
        for task in tasks:
            task.cancel()
        listeners.large_requests.close()
        if access_log is not None:
            access_log.close()
        if admin.is_reading:
            self._exit(engine, "a model that is being loaded is abandoned", code)
        return code

    def _exit(self, engine: Engine, reason: str, code: int) -> NoReturn:
        """Exit at once: no request is left, and a thread that loads a model cannot be stopped."""
        self._report(reason)
        engine.close(patient=False)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    async def _shut_down(
        self,
        engine: Engine,
        listeners: Listeners,
        stop_now: asyncio.Event,
    ) -> int:
        """Stop being ready, answer the admitted requests, then close the connections."""
        self._report("draining: new requests are rejected, active ones are answered")
        drained = asyncio.Event()
        engine.drain(drained.set)
        code = 0
        try:
            if await asyncio.wait_for(_first_of(stop_now, drained.wait()), self._options.drain_s) is None:
                self._report("second stop signal: active requests are abandoned")
                code = 75
        except TimeoutError:
            self._report(f"some requests took longer than the {self._options.drain_s:g} s of --drain and are abandoned")
            code = 75
        await listeners.close()
        engine.close(patient=code == 0)
        return code


class _StopSignals:
    """SIGTERM and SIGINT: the first one stops, the second one stops at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop = asyncio.Event()
        self.stop_now = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.stop_now if self.stop.is_set() else self.stop).set()


async def _first_of(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None if the event is set first."""
    task, event_set = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, event_set), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        event_set.cancel()


def _open_access_log(path: str) -> AccessLog | None:
    if not path:
        return None
    try:
        return AccessLog(path)
    except OSError as error:
        raise ConfigError("--access-log", path, f"cannot be written: {error.strerror}") from None


async def _poll(admin: AdminService, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await admin.poll()


async def _measure_loop_lag(engine: Engine) -> None:
    """Track the maximum delay of the event loop, with slow decay."""
    while True:
        due = monotonic_ns() + int(_LAG_INTERVAL_S * SECOND_NS)
        await asyncio.sleep(_LAG_INTERVAL_S)
        late_ns = max(monotonic_ns() - due, 0)
        engine.loop_lag_ns = max(late_ns, engine.loop_lag_ns * 9 // 10)


def cores_to_use(available: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the first cores that this process may use; zero: all of them."""
    if count > len(available):
        raise ConfigError("--cores", count, f"this process may use {len(available)}")
    return tuple(sorted(available))[: count or len(available)]
