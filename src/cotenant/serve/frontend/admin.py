"""Admin service: server and model metadata, statistics, and loading of models.

Independent of the protocol: results are trees with the names of the Open Inference Protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from cotenant import __version__
from cotenant.errors import ConfigError
from cotenant.runner.clock import monotonic_ns
from cotenant.serve.frontend.engine import Engine
from cotenant.serve.frontend.server_settings import ServerLog
from cotenant.serve.model.run_times import RunTimes
from cotenant.serve.protocol.oip.infer import InferError, quoted
from cotenant.serve.protocol.oip.metadata import EXTENSIONS, config, metadata
from cotenant.serve.runtime.model import LoadedModel, ModelLoadError, ModelSource
from cotenant.serve.runtime.repository import Repository, fingerprint
from cotenant.units.text import round_duration

ProfileOf: TypeAlias = Callable[[ModelSource], RunTimes | None]
"""Return the measured run times of a model on this device, or None."""
T = TypeVar("T")
READY: Final = "READY"
UNAVAILABLE: Final = "UNAVAILABLE"
LOADING: Final = "LOADING"
NONE: Final = "none"
EXPLICIT: Final = "explicit"
POLL: Final = "poll"
MODEL_CONTROL: Final = (NONE, EXPLICIT, POLL)
"""Which models are served: those at the start, those that the admin listener loads, or those in the directories."""
_LOADS_AT_ONCE: Final = 4
"""Maximum concurrent loads. Our choice: loading waits for disks and for processes that start."""


def _no_profile(source: ModelSource) -> RunTimes | None:
    del source
    return None


class AdminService:
    """Metadata, statistics and model repository of one server, independent of the protocol."""

    def __init__(
        self,
        engine: Engine,
        repository: Repository,
        reports: ServerLog,
        profile_of: ProfileOf = _no_profile,
        control: str = NONE,
    ) -> None:
        """Start with no model loaded; `profile_of` is called off the loop's thread and may take long."""
        self.engine = engine
        self.reports = reports
        self.control = control
        self._repository = repository
        self._cores = engine.all_units
        self._fingerprints: dict[str, tuple[object, ...]] = {}
        """Of the files that each model was loaded from, or could not be loaded from."""
        self._seen: dict[str, tuple[object, ...]] = {}
        """As `_fingerprints`, at the last poll."""
        self._states: dict[str, tuple[str, str, str]] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._settled = False
        self._lock = threading.Lock()
        self._threads = 0
        """Threads that read files of models, or execute them; a cancelled task does not end its thread."""
        self._profile_of = profile_of

    async def load_all(self) -> dict[str, str]:
        """Load all models; return the reasons of those that failed, by name."""
        sources = await self._in_thread(self._repository.scan, run_code=True)
        failures = {}
        semaphore = asyncio.Semaphore(_LOADS_AT_ONCE)

        async def load(name: str) -> None:
            async with semaphore:
                try:
                    await self.load(name, sources[name])
                except InferError as error:  # the log has the reason
                    failures[name] = str(error)

        await asyncio.gather(*map(load, sources))
        await self.engine.settled()
        self._settled = True
        return failures

    @property
    def ready(self) -> bool:
        """Return whether all models are loaded or failed, and a request for one of them would be run."""
        return self._settled and any(map(self.engine.can_serve, self.engine.names()))

    @property
    def is_reading(self) -> bool:
        """Return whether a thread reads files of models."""
        return self._threads > 0

    async def _in_thread(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        def counted() -> T:
            try:
                return work(*arguments, **options)
            finally:
                with self._lock:
                    self._threads -= 1

        with self._lock:
            self._threads += 1
        return await asyncio.to_thread(counted)

    def model_ready(self, name: str, version: str) -> bool:
        """Return whether a request for this model would be accepted."""
        try:
            self.engine.model(name, version)
        except InferError:
            return False
        return self.engine.can_serve(name)

    def check_control(self) -> None:
        """Raise `InferError` unless clients may load and unload models."""
        if self.control != EXPLICIT:
            text = f"models cannot be loaded or unloaded with --model-control {self.control}, only with {EXPLICIT}"
            raise InferError(text, "forbidden")

    def server(self) -> dict[str, Any]:
        """Return the server's metadata."""
        return {"name": "cotenant", "version": __version__, "extensions": list(EXTENSIONS)}

    def metadata(self, name: str, version: str) -> dict[str, Any]:
        """Return a model's metadata."""
        return metadata(self.engine.model(name, version).spec)

    def config(self, name: str, version: str) -> dict[str, Any]:
        """Return a model's configuration."""
        return config(self.engine.model(name, version).spec, self._cores)

    def statistics(self, name: str, version: str) -> dict[str, Any]:
        """Return the statistics of a model, or of all if the name is empty."""
        names = [name] if name else self.engine.names()
        models = [self.engine.model(model_name, version if name else "") for model_name in names]
        return {"model_stats": [self._of_model(model.spec.name, model.spec.version) for model in models]}

    def _of_model(self, name: str, version: str) -> dict[str, object]:
        statistics = self.engine.statistics[name]
        return statistics.statistics(name, version, self.engine.unix_ms(statistics.last_answer))

    def plan(self) -> dict[str, Any]:
        """Return the plan of the scheduling policy."""
        return self.engine.plan_report()

    async def index(self, *, only_ready: bool) -> list[dict[str, str]]:
        """Return all models with their states."""
        try:
            sources = await self._in_thread(self._repository.scan)
        except (OSError, ConfigError) as error:
            raise InferError(f"the models cannot be listed: {error}", "fault") from None
        models = []
        for name in sorted({*sources, *self._states}):
            version, state, reason = self._states.get(name, ("", UNAVAILABLE, "not loaded"))
            if not only_ready or state == READY:
                models.append({"name": name, "version": version, "state": state, "reason": reason})
        return models

    async def load(self, name: str, known: ModelSource | None = None) -> None:
        """Load a model, or load it again; requests of the previous instance are still answered by it.

        `known` is its source if the models were just listed, which takes a while if there are thousands.
        """
        async with self._loading.setdefault(name, asyncio.Lock()):
            try:
                source = known or await self._in_thread(self._find, name)
            except (OSError, ConfigError) as error:
                raise InferError(f"failed to load {quoted(name)}: the models cannot be listed: {error}") from None
            if source is None:
                self._loading.pop(name, None)
                raise InferError(f"failed to load {quoted(name)}: there is no such model", "not-found")
            previous = self._states.get(name)
            if previous is None or previous[1] != READY:
                self._states[name] = (source.version, LOADING, "")
            began_ns = monotonic_ns()
            self._fingerprints[name] = await self._in_thread(fingerprint, source)
            try:
                model, times = await self._in_thread(self._load, source)
            except Exception as error:  # noqa: BLE001  a failing model must not affect the others
                reason = (
                    str(error) if isinstance(error, ModelLoadError) else f"{type(error).__name__}: {str(error)[:500]}"
                )
                if previous is None or previous[1] != READY:
                    self._states[name] = (source.version, UNAVAILABLE, reason)
                self.reports.error(f"failed to load {quoted(name)}: {reason}")
                raise InferError(f"failed to load {quoted(name)}: {reason}") from None
            self.engine.serve(model, times)
            self._states[name] = (source.version, READY, "")
            action = "reloaded" if previous is not None and previous[1] == READY else "loaded"
            took = round_duration(monotonic_ns() - began_ns)
            self.reports.info(f"{action} {quoted(name)} version {source.version} from {source.path} in {took}")

    def _find(self, name: str) -> ModelSource | None:
        """Return the source of a model; Python files are executed only if that is needed to know their models."""
        source = self._repository.scan().get(name)
        if source is None or source.broken:
            source = self._repository.scan(run_code=True).get(name)
        return source

    def _load(self, source: ModelSource) -> tuple[LoadedModel, RunTimes | None]:
        model = self._repository.load(source)
        return model, self._profile_of(source)

    def unload(self, name: str) -> None:
        """Accept no more requests for a model; queued ones are answered."""
        state = self._states.get(name)
        if state is None:
            raise InferError(f"failed to unload {quoted(name)}: there is no such model", "not-found")
        self.engine.withdraw(name)
        self._states[name] = (state[0], UNAVAILABLE, "unloaded")
        self.reports.info(f"unloaded {quoted(name)} version {state[0]}")

    async def poll(self) -> None:
        """Load new and changed models, and unload removed ones.

        A model is loaded when its files are the same at two polls, so that they are complete.
        """
        try:
            sources = await self._in_thread(self._repository.scan, run_code=True)
            seen = await self._in_thread(lambda: {name: fingerprint(source) for name, source in sources.items()})
        except Exception as error:  # noqa: BLE001  whatever the files contain, the next poll must follow
            self.reports.error(f"the models cannot be listed: {error}")
            return
        for name, current in seen.items():
            if current != self._fingerprints.get(name) and current == self._seen.get(name):
                with contextlib.suppress(InferError):  # the log has the reason
                    await self.load(name, sources[name])
        for name, state in list(self._states.items()):
            if name not in sources:
                if state[1] == READY:
                    self.unload(name)
                self._states.pop(name, None)
                self._fingerprints.pop(name, None)
        self._seen = seen
