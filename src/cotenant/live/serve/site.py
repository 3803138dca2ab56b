"""What can a server be asked beside inference? What it is, what it has, and to load or unload a model.

The same for every protocol: plain trees, in the protocol's own words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from cotenant import __version__
from cotenant.domain.runtimes import RunTimes
from cotenant.format.describe import EXTENSIONS, config, metadata
from cotenant.format.infer import InferError, shown
from cotenant.live.serve.engine import Engine
from cotenant.live.serve.found import Found
from cotenant.live.serve.model import LoadFailed, Runnable
from cotenant.live.serve.repository import Repository

ProfileOf: TypeAlias = Callable[[Found], RunTimes | None]
"""What a model's runs were measured to take on this device, if they were."""
READY: Final = "READY"
UNAVAILABLE: Final = "UNAVAILABLE"
LOADING: Final = "LOADING"
_LOADS_AT_ONCE: Final = 4
"""Our choice: loading waits for disks and for processes that start."""


def _no_profile(found: Found) -> RunTimes | None:
    del found
    return None


class Site:
    """One server as its clients see it."""

    def __init__(self, engine: Engine, repository: Repository, cores: int, profile_of: ProfileOf = _no_profile) -> None:
        """Nothing is loaded yet; `profile_of` is asked off the loop's thread, and takes as long as it takes."""
        self.engine = engine
        self._repository = repository
        self._cores = cores
        self._states: dict[str, tuple[str, str, str]] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._settled = False
        self._profile_of = profile_of

    async def load_all(self) -> dict[str, str]:
        """Load whatever is there; returns the reasons of those that could not be."""
        found = await asyncio.to_thread(self._repository.scan)
        refused = {}
        at_once = asyncio.Semaphore(_LOADS_AT_ONCE)

        async def load(name: str) -> None:
            async with at_once:
                try:
                    await self.load(name)
                except InferError as error:
                    refused[name] = str(error)

        await asyncio.gather(*map(load, found))
        await self.engine.settled()
        self._settled = True
        return refused

    @property
    def ready(self) -> bool:
        """All that can be loaded is, and requests are taken."""
        return self._settled and not self.engine.draining

    def model_ready(self, name: str, version: str) -> bool:
        """Whether a request for this model would be taken."""
        try:
            self.engine.model(name, version)
        except InferError:
            return False
        return not self.engine.draining

    def server(self) -> dict[str, Any]:
        """What this is."""
        return {"name": "cotenant", "version": __version__, "extensions": list(EXTENSIONS)}

    def metadata(self, name: str, version: str) -> dict[str, Any]:
        """What a model takes and gives."""
        return metadata(self.engine.model(name, version).spec)

    def config(self, name: str, version: str) -> dict[str, Any]:
        """How a model is served."""
        return config(self.engine.model(name, version).spec, self._cores)

    def statistics(self, name: str, version: str) -> dict[str, Any]:
        """What a model did, or all of them if the name is empty."""
        names = [name] if name else self.engine.names()
        models = [self.engine.model(one, version if name else "") for one in names]
        return {"model_stats": [self._of_model(one.spec.name, one.spec.version) for one in models]}

    def _of_model(self, name: str, version: str) -> dict[str, object]:
        figures = self.engine.figures[name]
        return figures.statistics(name, version, self.engine.unix_ms(figures.last))

    def plan(self) -> dict[str, Any]:
        """What the policy of this server intends."""
        return self.engine.beliefs()

    async def index(self, *, only_ready: bool) -> list[dict[str, str]]:
        """Every model there is, and how it is."""
        try:
            there = await asyncio.to_thread(self._repository.scan)
        except OSError as error:
            raise InferError(f"the models cannot be listed: {error}", "fault") from None
        listed = []
        for name in sorted({*there, *self._states}):
            version, state, reason = self._states.get(name, ("", UNAVAILABLE, "not loaded"))
            if not only_ready or state == READY:
                listed.append({"name": name, "version": version, "state": state, "reason": reason})
        return listed

    async def load(self, name: str) -> None:
        """Load a model, or load it again; who uses the one before goes on with it until answered."""
        async with self._loading.setdefault(name, asyncio.Lock()):
            found = (await asyncio.to_thread(self._repository.scan)).get(name)
            if found is None:
                self._loading.pop(name, None)
                raise InferError(f"failed to load {shown(name)}: there is no such model", "not-found")
            before = self._states.get(name)
            if before is None or before[1] != READY:
                self._states[name] = (found.version, LOADING, "")
            try:
                model, times = await asyncio.to_thread(self._load, found)
            except Exception as error:  # noqa: BLE001  whatever a model's file does, the others go on
                why = str(error) if isinstance(error, LoadFailed) else f"{type(error).__name__}: {str(error)[:500]}"
                if before is None or before[1] != READY:
                    self._states[name] = (found.version, UNAVAILABLE, why)
                raise InferError(f"failed to load {shown(name)}: {why}") from None
            self.engine.serve(model, times)
            self._states[name] = (found.version, READY, "")

    def _load(self, found: Found) -> tuple[Runnable, RunTimes | None]:
        model = self._repository.load(found)
        return model, self._profile_of(found)

    def unload(self, name: str) -> None:
        """Take no more requests for a model; those that wait are answered."""
        state = self._states.get(name)
        if state is None:
            raise InferError(f"failed to unload {shown(name)}: there is no such model", "not-found")
        self.engine.withdraw(name)
        self._states[name] = (state[0], UNAVAILABLE, "unloaded")
