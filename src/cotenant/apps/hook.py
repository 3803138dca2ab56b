"""Wires the hook into `cotenant run`: before, what the program is started with; after, what is kept of its record."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from cotenant.domain.profile import Profile, merge
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.domain.use import TaskUse
from cotenant.errors import CotenantError, WorldError
from cotenant.format.config import RunConfig
from cotenant.format.known import FILE_NAME, encode_known
from cotenant.format.record import Record
from cotenant.live.clock import unix_ns
from cotenant.live.gate import GATE_VARIABLE
from cotenant.live.hook.door import LEDGER_VARIABLE, RECORD_VARIABLE, environment, find_driver, find_nvml, make_shim
from cotenant.live.hook.trace import (
    driver_of,
    family,
    hold,
    is_abandoned,
    program_of,
    read_records,
    recorded,
    show_task,
    show_terms,
)
from cotenant.live.page import SLOT_VARIABLE
from cotenant.live.profile.store import Kept, ProfileStore
from cotenant.policy.predict.use import sms_of, use_of

Say: TypeAlias = Callable[[str], None]

MEASURED_RUNS: Final = 3
_FIRST_LOOK_S: Final = 0.1
_LONGEST_LOOK_S: Final = 2.0
_REMEDY: Final = "it may be linked statically, or load the driver by its path"


class Hooked:
    """One program with the hook in it, from before its start until after its end."""

    def __init__(self, config: RunConfig, home: Path, driver: Path, task: str, *, measuring: bool, say: Say) -> None:
        """Make the directory that the program finds the hook in and leaves its records in."""
        self._config = config
        self.driver = driver
        self._say = say
        self._strays: dict[int, str] = {}
        self._told: list[int] = []
        self.measuring = measuring
        self.home = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=home))
        self._held = hold(self.home)
        self.records = self.home / "records"
        self.records.mkdir(mode=0o700)
        show_task(self.home, config.name or task)
        self.look_s = _FIRST_LOOK_S

    def variables(
        self, environ: Mapping[str, str], page: int | None, gate: Sequence[int] = (), ledger: Sequence[int] = ()
    ) -> dict[str, str]:
        """What to add to the environment of a program under the terms of this page, or of nobody's tenant.

        `gate` and `ledger` are the descriptors of its device's files, to read and to write, where it has a device.
        """
        if page is not None:
            show_terms(self.records, page, gate, ledger)
        return {
            **environment(self._config.hook, self.home / "shim", environ),
            **({SLOT_VARIABLE: "", GATE_VARIABLE: "", LEDGER_VARIABLE: ""} if page is None else {}),
            RECORD_VARIABLE: str(self.records),
            "COTENANT_MEASURE": str(int(self.measuring)),
            "COTENANT_SAMPLE": str(self._config.sample),
            "COTENANT_UNKNOWN": self._config.unknown,
            "COTENANT_TRACE": str(int(self._config.trace == "on")),
        }

    def close(self) -> None:
        """Nothing of it stays."""
        shutil.rmtree(self.home, ignore_errors=True)
        os.close(self._held)

    def look(self, pid: int) -> None:
        """While it runs: does a process use the driver past us?"""
        self.look_s = min(2 * self.look_s, _LONGEST_LOOK_S)
        for member in family(pid):
            path = driver_of(member, self.driver.resolve(), hooked=self._config.hook == "preload")
            if path and member not in self._strays:
                self._strays[member] = f"{program_of(member)} (pid {member}) uses {path}"
                if self._config.hook == "shim":  # preloaded, it may be seen yet
                    self._tell(member)

    @property
    def unseen(self) -> bool:
        """Whether a process loaded the driver and the hook saw nothing of it."""
        return bool(self._unseen())

    def _unseen(self) -> list[int]:
        return [pid for pid in self._strays if not recorded(self.records, pid)]

    def _tell(self, pid: int) -> None:
        if pid not in self._told:
            self._told.append(pid)
            self._say(f"{self._strays[pid]}, and the hook saw nothing of it: {_REMEDY}; its GPU work is not known")

    def collect(self, task: str) -> list[Record]:
        """What its processes recorded; what the hook could not see is said."""
        found = [record for record in read_records(self.records, task) if record.calls or record.unknown]
        for pid in self._unseen():
            self._tell(pid)
        names = sorted({name for record in found for name in record.unknown_names})
        if names:
            done = "refused" if self._config.unknown == "refuse" else "passed on unseen"
            self._say(f"the driver has newer forms of {', '.join(names)} than the hook knows: {done}")
        if any(record.export_tables for record in found) and not any(record.calls for record in found):
            self._say("the program uses private tables of the driver: work through them is not seen")
        return found


@contextlib.contextmanager
def hook_into(
    config: RunConfig, home: Path, environ: Mapping[str, str], task: str, store: ProfileStore | None, say: Say
) -> Iterator[Hooked | None]:
    """The hook, ready for a program; None when it is off, or when there is no driver it could stand before."""
    hooked = _prepare(config, home, environ, task, store, say)
    try:
        yield hooked
    finally:
        if hooked is not None:
            hooked.close()


def _prepare(
    config: RunConfig, home: Path, environ: Mapping[str, str], task: str, store: ProfileStore | None, say: Say
) -> Hooked | None:
    if config.hook == "off":
        return None
    driver = find_driver(environ)
    if driver is None:
        return None
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear_away(home)
        hooked = Hooked(config, home, driver, task, measuring=_is_measuring(config.measure, task, store), say=say)
        make_shim(hooked.home / "shim", driver, find_nvml(environ))
        _tell_known(hooked.records, task, store)
        return hooked
    except OSError as error:
        say(f"the hook cannot be put in place: {error.strerror} ({error.filename}); the program runs without it")
        return None
    except WorldError as error:
        say(f"{error}; the program runs without it")
        return None


def _clear_away(home: Path) -> None:
    """What runs left behind that were killed themselves."""
    for left in home.glob("run-*-*"):
        if is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_measuring(wanted: str, task: str, store: ProfileStore | None) -> bool:
    if wanted in ("always", "never"):
        return wanted == "always"
    runs = MEASURED_RUNS if wanted == "auto" else int(wanted)
    if store is None or not runs:
        return False
    with contextlib.suppress(CotenantError):
        keys = [key for key in store.keys() if key.task == task]  # noqa: SIM118  not a dictionary
        measured = [one for key in keys for one in store.recordings(key) if one.profile.span_ns]
        return len(measured) < runs
    return False


def _tell_known(records: Path, task: str, store: ProfileStore | None) -> None:
    """Put what earlier runs of the task say of its kernels beside its records; without it the hook learns anew."""
    with contextlib.suppress(CotenantError):
        keys = [key for key in store.keys() if key.task == task] if store is not None else []  # noqa: SIM118
        kept = [found for key in keys if store is not None and (found := store.get(key)) is not None]
        if kept:
            (records / FILE_NAME).write_bytes(encode_known(one.profile for one in kept))


def with_use(spec: TenantSpec, store: ProfileStore | None) -> TenantSpec:
    """What the tenant asks for, with what earlier runs of its task say that it does with a device."""
    use = known_use(spec.task, store, is_online=spec.kind is Kind.ONLINE)
    return spec if use is None else msgspec.structs.replace(spec, use=use)


def known_use(task: str, store: ProfileStore | None, *, is_online: bool) -> TaskUse | None:
    """What earlier runs of a task say that it does with a device; None: nothing.

    Where there are profiles of several kinds of device, the latest: it is more likely of this machine.
    """
    found: list[Kept] = []
    with contextlib.suppress(CotenantError):
        keys = [key for key in store.keys() if key.task == task] if store is not None else []  # noqa: SIM118
        found = [kept for key in keys if store is not None and (kept := store.get(key)) is not None]
    for kept in sorted(found, key=lambda kept: kept.recorded_ns, reverse=True):
        use = use_of(kept.profile, sms_of(kept.profile.device), is_online=is_online)
        if use is not None:
            return use
    return None


def profiles_of(records: Iterable[Record], task: str) -> list[Profile]:
    """One recording per kind of device, however many processes the program had."""
    found: dict[str, list[Profile]] = {}
    for record in records:
        if record.profile.timings:
            found.setdefault(record.profile.device, []).append(record.profile)
    return [msgspec.structs.replace(merge(parts, task, device), runs=1) for device, parts in found.items()]


def keep(profiles: Sequence[Profile], store: ProfileStore | None, say: Say) -> None:
    """Put recordings into the store; a program's end is never spoiled by that."""
    for profile in profiles if store is not None else ():
        assert store is not None
        try:
            store.add(profile, unix_ns())
        except CotenantError as error:
            say(f"the recording is lost: {error}")
