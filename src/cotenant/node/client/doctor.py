"""`cotenant doctor`: check this machine and return findings with their remedies."""

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
from cotenant.errors import CotenantError, WorldError
from cotenant.hook import shim
from cotenant.node.client.connection import NodeUnavailableError, list_tenants
from cotenant.node.client.service import node_status
from cotenant.node.daemon.mps import CONTROL, MPS_DIRECTORY, control_of
from cotenant.node.daemon.node_files import unwritable
from cotenant.node.directories import Directories
from cotenant.node.journal import NodeJournalReader
from cotenant.node.model.protection import Health
from cotenant.runner.journal import JournalDamageError
from cotenant.softgpu import manage
from cotenant.units.text import counted, round_size

_PIDFD_KERNEL = (5, 3)
_NOT_ADMITTING = (Health.UNHEALTHY, Health.OVERLIMIT, Health.DISABLED)


class Level(enum.Enum):
    """The severity of a finding."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    level: Level
    what: str
    remedy: str = ""


def examine(directories: Directories) -> Iterator[Finding]:
    """Yield the findings of all checks."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _system,
        _native,
        lambda: _directories(directories),
        lambda: _node(directories),
        lambda: _storage(directories),
        lambda: _journal(directories),
        lambda: _damaged_files(directories),
        lambda: _mps(directories),
        lambda: _calibration(directories),
        lambda: _driver(directories),
        _hook,
    ]
    for check in checks:
        yield from check()


def _system() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    kernel = platform.release()
    numbers = tuple(int(part) for part in kernel.split("-")[0].split(".")[:2] if part.isdecimal())
    if platform.system() != "Linux" or numbers < _PIDFD_KERNEL:
        yield Finding(Level.BAD, f"kernel {platform.system()} {kernel}", "use Linux 5.3 or newer: pidfd_open is needed")
    else:
        yield Finding(Level.GOOD, f"Python {version} on Linux {kernel}")


def _native() -> Iterator[Finding]:
    try:
        from cotenant.gate import grant_page as gate  # noqa: PLC0415  the C extension may be missing
    except ImportError as error:
        yield Finding(
            Level.BAD, f"the C extension does not load: {error}", "reinstall cotenant with pip, which builds it"
        )
        return
    yield Finding(Level.GOOD, f"the C extension loads (grant page version {gate.PAGE_VERSION})")


def _directories(directories: Directories) -> Iterator[Finding]:
    if directories.tenant_socket.exists() and directories.runtime.stat().st_uid != os.geteuid():
        owner = directories.runtime.stat().st_uid
        what = f"this is the node of user {owner} in {directories.runtime}; its journal and log are not yours to read"
        yield Finding(Level.GOOD, what)
        return
    for label, path, forbidden in (("runtime", directories.runtime, 0o022), ("state", directories.state, 0o007)):
        nearest = next(parent for parent in (path, *path.parents) if _exists(parent))
        if not os.access(nearest, os.W_OK | os.X_OK):
            remedy = f"make it writable, or set directories.{label} in the config to one that is"
            yield Finding(Level.BAD, f"{label} directory {path} cannot be written", remedy)
        elif _exists(path) and path.stat().st_uid != os.geteuid():
            remedy = f"set directories.{label} in the config to a directory of your own"
            yield Finding(Level.BAD, f"{label} directory {path} belongs to user {path.stat().st_uid}", remedy)
        elif _exists(path) and path.stat().st_mode & forbidden:
            verb, remedy = ("writable by", "go-w") if label == "runtime" else ("accessible to", "o-rwx")
            yield Finding(Level.BAD, f"{label} directory {path} is {verb} other users", f"run: chmod {remedy} {path}")
        elif _exists(path) and (reason := unwritable(path)):
            remedy = "free space, or mount it writable; the node then continues by itself"
            yield Finding(Level.BAD, f"{label} directory {path} {reason}, so the node refuses joins", remedy)
        else:
            yield Finding(Level.GOOD, f"{label} directory {path}")


def _calibration(directories: Directories) -> Iterator[Finding]:
    """Yield what the node has measured of its devices."""
    try:
        status = node_status(directories)
    except CotenantError:
        return
    if status is None:
        return
    measured = {entry.gpu: entry.calibration for entry in status.calibrations}
    for gpu, calibration in measured.items():
        what = f"GPU {gpu}: {calibration.describe()}"
        if calibration.gap_filling_loss or calibration.has_ineffective_mps:
            remedy = 'share this GPU under MPS (mps = "on" in [node]), or accept that only idle time is used'
            yield Finding(Level.NOTE, what, remedy)
        else:
            yield Finding(Level.GOOD, what)
    missing = [str(gpu) for gpu in range(len(status.gpus)) if gpu not in measured]
    if missing:
        what = f"the costs of sharing GPU {', '.join(missing)} are not measured; the gate uses those of the config"
        yield Finding(Level.NOTE, what, "nothing to do: the node measures them when no tenant has used it for 3 s")


def _exists(path: Path) -> bool:
    """Return whether a path exists, as far as this user can know."""
    return os.path.lexists(path)


def _node(directories: Directories) -> Iterator[Finding]:
    try:
        snapshot = list_tenants(directories)
    except NodeUnavailableError:
        if directories.tenant_socket.exists():
            remedy = "start a node (`cotenant node`, or any `cotenant run`): it replaces the stale socket and recovers"
            yield Finding(Level.NOTE, f"a node died and left {directories.tenant_socket}", remedy)
        else:
            yield Finding(
                Level.NOTE, "no node runs", "nothing to do: `cotenant run` starts one, or run `cotenant node`"
            )
        return
    except CotenantError as error:
        yield Finding(
            Level.BAD,
            f"the node at {directories.tenant_socket} does not respond: {error}",
            "see its log, or restart it",
        )
        return
    if snapshot.node_version != __version__:
        what = f"the node is version {snapshot.node_version}, this is {__version__}"
        yield Finding(Level.NOTE, what, "restart the node; its tenants will reconnect")
    gpus = f", shares {', '.join(gpu.name for gpu in snapshot.gpus)}" if snapshot.gpus else ""
    tenants = f"{counted(len(snapshot.tenants), 'tenant')} in {counted(snapshot.slots, 'slot')}"
    yours = " of yours" if snapshot.is_restricted else ""
    yield Finding(Level.GOOD, f"node pid {snapshot.pid}: {tenants}{yours}{gpus}")
    for gpu, watch in enumerate(snapshot.devices):
        if watch.health in _NOT_ADMITTING:
            what = f"GPU {gpu} is {watch.health.value}: {watch.why}"
            yield Finding(Level.NOTE, what, f"see the events that led to it: cotenant events --gpu {gpu}")
    if not snapshot.gpus:
        remedy = "it searches again when a tenant joins; or add a [[gpu]] table to its config, or use --gpu NAME=MEMORY"
        yield Finding(Level.NOTE, "the node has no GPU, so memory and shares are not reserved", remedy)


def _storage(directories: Directories) -> Iterator[Finding]:
    """Report a running node that cannot store anything, or that dropped requests."""
    try:
        status = node_status(directories)
    except CotenantError:  # reported as a node that does not respond
        return
    if status is None:
        return
    if status.storage:
        kept = f"; {counted(status.kept_turns, 'turn')} kept in memory" if status.kept_turns else ""
        remedy = "repair it, for example by freeing space; the node tries again every second and needs no restart"
        yield Finding(Level.BAD, f"the node refuses joins: {status.storage}{kept}", remedy)
    if status.dropped:
        what = f"the node refused or dropped {counted(status.dropped, 'request')} without a record of each"
        yield Finding(Level.NOTE, what, "see who sent them: cotenant events --json, event requests-dropped")


def _journal(directories: Directories) -> Iterator[Finding]:
    try:
        with directories.journal.open("rb") as file:
            reader = NodeJournalReader(file.read)
            for _ in reader:
                pass
    except (FileNotFoundError, PermissionError):  # there is none yet, or it is of the node of another user
        return
    except (OSError, JournalDamageError) as error:
        remedy = "restart the node: it renames the file, continues from the readable part, and reports it"
        yield Finding(Level.BAD, f"journal {directories.journal}: {error}", remedy)
        return
    size = round_size(reader.sound_bytes)
    yield Finding(Level.GOOD, f"journal {directories.journal}: {counted(reader.turns, 'turn')}, {size}")


def _damaged_files(directories: Directories) -> Iterator[Finding]:
    for path, what in (
        (directories.journal, "a damaged journal"),
        (directories.diurnal, "a damaged file of diurnal profiles"),
    ):
        for renamed in sorted(Path(directories.state).glob(f"{path.name}.damaged-*")):
            yield Finding(Level.NOTE, f"{what} was renamed: {renamed}", "delete it when you no longer need it")


def _driver(directories: Directories) -> Iterator[Finding]:
    soft = sum(gpu.alive for gpu in manage.gpus(directories.runtime / "softgpu"))
    if soft:
        yield Finding(Level.GOOD, f"{counted(soft, 'software GPU')}; quotas, suspending and MPS work on them")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        remedy = "install the NVIDIA driver to share a real GPU; everything else works without one"
        yield Finding(Level.NOTE, "no CUDA driver (libcuda.so.1) on this machine", remedy)
        return
    yield Finding(Level.GOOD, "the CUDA driver library loads")
    if hasattr(driver, "cuCheckpointProcessLock"):
        yield Finding(Level.GOOD, "the driver has the checkpoint calls: `run --on-pressure suspend` is available")
    else:
        what = "the driver has no checkpoint calls: `run --on-pressure suspend` evicts instead"
        yield Finding(Level.NOTE, what, "use a driver of CUDA 12.8 (R570) or newer to suspend")


def _mps(directories: Directories) -> Iterator[Finding]:
    daemon = control_of(directories.runtime / MPS_DIRECTORY)
    if daemon is not None:
        yield Finding(Level.GOOD, f"MPS: the node's daemon runs, pid {daemon}")
    elif shutil.which(CONTROL) is not None:
        yield Finding(
            Level.GOOD, f"MPS: {CONTROL} is installed, and the node does not use it; `cotenant node --mps on` does"
        )
    else:
        yield Finding(Level.GOOD, "MPS: not installed, and the node does not use it")


def _hook() -> Iterator[Finding]:
    try:
        library = shim.hook_library()
        shim.cuda_shim()
    except WorldError as error:
        yield Finding(Level.BAD, str(error), "reinstall cotenant with pip, which builds the hook")
        return
    driver = shim.find_driver(os.environ)
    if driver is None:
        yield Finding(Level.GOOD, f"hook {library.name} is installed, and there is no driver to intercept")
        return
    with tempfile.TemporaryDirectory(prefix="cotenant-doctor-") as directory:
        folder = Path(directory) / "shim"
        shim.make_shim(folder, driver)
        problem = shim.try_load(folder, os.environ)
    if problem:
        remedy = "programs run without it under `cotenant run --hook off`; please report this"
        yield Finding(Level.BAD, f"hook {library.name} does not load before {driver}: {problem}", remedy)
    else:
        yield Finding(Level.GOOD, f"hook {library.name} loads before {driver}")
