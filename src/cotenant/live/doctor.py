"""Is this machine ready? Every finding says what it means and what to do about it."""

from __future__ import annotations

import ctypes
import enum
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from cotenant import __version__
from cotenant.domain.protect import Health
from cotenant.errors import CotenantError, WorldError
from cotenant.format.journal import JournalDamageError, TurnReader
from cotenant.format.quantity import counted, round_size
from cotenant.live.client import NodeAwayError, tenants_of
from cotenant.live.directory import Places
from cotenant.live.hook import door
from cotenant.live.ledger import devices_in
from cotenant.live.mps import CONTROL, MPS_DIRECTORY, control_of
from cotenant.live.softgpu import manage

_PIDFD_KERNEL = (5, 3)
_TURNED_AWAY = (Health.UNHEALTHY, Health.OVERLIMIT, Health.DISABLED)


class Level(enum.Enum):
    """How bad it is."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    level: Level
    what: str
    remedy: str = ""


def examine(places: Places) -> Iterator[Finding]:
    """Everything worth knowing before a first run, one finding at a time."""
    looks: list[Callable[[], Iterator[Finding]]] = [
        _system,
        _native,
        lambda: _directories(places),
        lambda: _node(places),
        lambda: _journal(places),
        lambda: _aside(places),
        lambda: _quotas(places),
        lambda: _mps(places),
        lambda: _driver(places),
        _hook,
        lambda: _cluster(places),
    ]
    for look in looks:
        yield from look()


def _system() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    kernel = platform.release()
    numbers = tuple(int(part) for part in kernel.split("-")[0].split(".")[:2] if part.isdigit())
    if platform.system() != "Linux" or numbers < _PIDFD_KERNEL:
        yield Finding(Level.BAD, f"kernel {platform.system()} {kernel}", "use Linux 5.3 or newer: pidfd_open is needed")
    else:
        yield Finding(Level.GOOD, f"Python {version} on Linux {kernel}")


def _native() -> Iterator[Finding]:
    try:
        from cotenant.policy.schedule import gate  # noqa: PLC0415  the import is the thing examined
    except ImportError as error:
        yield Finding(Level.BAD, f"the C parts do not load: {error}", "reinstall cotenant with pip; it builds them")
        return
    yield Finding(Level.GOOD, f"C parts load (terms page version {gate.PAGE_VERSION})")


def _directories(places: Places) -> Iterator[Finding]:
    for label, path in (("runtime", places.runtime), ("state", places.state)):
        nearest = next(parent for parent in (path, *path.parents) if parent.exists())
        if not os.access(nearest, os.W_OK | os.X_OK):
            remedy = f"make it writable, or set directories.{label} in the config to one that is"
            yield Finding(Level.BAD, f"{label} directory {path} cannot be written", remedy)
        elif path.exists() and path.stat().st_uid != os.geteuid():
            remedy = f"set directories.{label} in the config to a directory of your own"
            yield Finding(Level.BAD, f"{label} directory {path} belongs to user {path.stat().st_uid}", remedy)
        elif path.exists() and path.stat().st_mode & 0o007:
            yield Finding(Level.BAD, f"{label} directory {path} is open to everybody", f"run: chmod o-rwx {path}")
        else:
            yield Finding(Level.GOOD, f"{label} directory {path}")


def _node(places: Places) -> Iterator[Finding]:
    try:
        roll = tenants_of(places.socket)
    except NodeAwayError:
        if places.socket.exists():
            remedy = "start a node (`cotenant node`, or any `cotenant run`): it replaces the stale socket and recovers"
            yield Finding(Level.NOTE, f"a node died and left {places.socket}", remedy)
        else:
            yield Finding(
                Level.NOTE, "no node runs", "nothing to do: `cotenant run` starts one, or run `cotenant node`"
            )
        return
    except CotenantError as error:
        yield Finding(Level.BAD, f"the node at {places.socket} cannot be asked: {error}", "see its log, or restart it")
        return
    if roll.node_version != __version__:
        what = f"the node is version {roll.node_version}, this is {__version__}"
        yield Finding(Level.NOTE, what, "restart the node; its tenants will come back to it")
    shared = f", shares {', '.join(gpu.name for gpu in roll.gpus)}" if roll.gpus else ""
    tenants = f"{counted(len(roll.tenants), 'tenant')} in {counted(roll.slots, 'slot')}"
    yield Finding(Level.GOOD, f"node pid {roll.pid}: {tenants}{shared}")
    for gpu, watch in enumerate(roll.devices):
        if watch.health in _TURNED_AWAY:
            what = f"GPU {gpu} is {watch.health.value}: {watch.why}"
            yield Finding(Level.NOTE, what, f"see what led to it: cotenant events --gpu {gpu}")
    if not roll.gpus:
        remedy = "it looks again when a tenant joins; else add a [[gpu]] table to its config, or use --gpu NAME=MEMORY"
        yield Finding(Level.NOTE, "the node knows no GPU, so memory and shares are not reserved", remedy)


def _cluster(places: Places) -> Iterator[Finding]:
    from cotenant.live.cluster.doctor import examine_brain, examine_node  # noqa: PLC0415  most have no cluster, nor TLS

    for is_good, what, remedy in (*examine_brain(places), *examine_node(places)):
        yield Finding(Level.GOOD if is_good else Level.NOTE, what, remedy)


def _journal(places: Places) -> Iterator[Finding]:
    if not places.journal.exists():
        return
    try:
        with places.journal.open("rb") as file:
            reader = TurnReader(file.read)
            for _ in reader:
                pass
    except (OSError, JournalDamageError) as error:
        remedy = "restart the node: it sets the file aside, goes on from the sound part, and says so"
        yield Finding(Level.BAD, f"journal {places.journal}: {error}", remedy)
        return
    size = round_size(reader.sound_bytes)
    yield Finding(Level.GOOD, f"journal {places.journal}: {counted(reader.turns, 'turn')}, {size}")


def _aside(places: Places) -> Iterator[Finding]:
    for path, what in ((places.journal, "a damaged journal"), (places.days, "a damaged file of days")):
        for aside in sorted(Path(places.state).glob(f"{path.name}.damaged-*")):
            yield Finding(Level.NOTE, f"{what} was set aside: {aside}", "delete it once you have looked at it")


def _driver(places: Places) -> Iterator[Finding]:
    soft = sum(gpu.alive for gpu in manage.gpus(places.runtime / "softgpu"))
    if soft:
        yield Finding(Level.GOOD, f"{counted(soft, 'software GPU')}; quotas, suspending and MPS work on them")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        remedy = "install the NVIDIA driver to share a real GPU; everything else works without"
        yield Finding(Level.NOTE, "no CUDA driver (libcuda.so.1) on this machine", remedy)
        return
    yield Finding(Level.GOOD, "the CUDA driver library loads")
    if hasattr(driver, "cuCheckpointProcessLock"):
        yield Finding(Level.GOOD, "the driver has the checkpoint calls: `run --on-pressure suspend` can be done")
    else:
        what = "the driver has no checkpoint calls: `run --on-pressure suspend` evicts instead"
        yield Finding(Level.NOTE, what, "use a driver of CUDA 12.8 (R570) or newer to suspend")


def _quotas(places: Places) -> Iterator[Finding]:
    """The ledgers are what holds tenants to their memory; a node makes them with a device's first tenant."""
    ledgers = devices_in(places.pages)
    if ledgers:
        of = f"of {counted(len(ledgers), 'GPU')}"
        yield Finding(Level.GOOD, f"memory quotas: ledger {of} in {places.pages}")


def _mps(places: Places) -> Iterator[Finding]:
    daemon = control_of(places.runtime / MPS_DIRECTORY)
    if daemon is not None:
        yield Finding(Level.GOOD, f"MPS: the node's daemon runs, pid {daemon}")
    elif shutil.which(CONTROL) is not None:
        yield Finding(Level.GOOD, f"MPS: {CONTROL} is there, and the node runs none; `cotenant node --mps on` would")
    else:
        yield Finding(Level.GOOD, "MPS: the node runs none, and there is none to run")


def _hook() -> Iterator[Finding]:
    try:
        library = door.library()
        door.door()
    except WorldError as error:
        yield Finding(Level.BAD, str(error), "reinstall cotenant with pip; it builds the hook")
        return
    driver = door.find_driver(os.environ)
    if driver is None:
        yield Finding(Level.GOOD, f"hook {library.name} is there, and no driver to put it before")
        return
    with tempfile.TemporaryDirectory(prefix="cotenant-doctor-") as place:
        shim = Path(place) / "shim"
        door.make_shim(shim, driver)
        problem = door.try_load(shim, os.environ)
    if problem:
        remedy = "programs run without it under `cotenant run --hook off`; please report this"
        yield Finding(Level.BAD, f"hook {library.name} does not load before {driver}: {problem}", remedy)
    else:
        yield Finding(Level.GOOD, f"hook {library.name} loads before {driver}")
