"""Creation, listing, inspection and removal of software GPUs: a directory with one socket per GPU."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant import _native
from cotenant.errors import ConfigError, PeerError, SetupError, WorldError
from cotenant.softgpu import wire
from cotenant.softgpu.costs import IDEAL, GpuCosts
from cotenant.softgpu.mps.programs import PROGRAMS, make_programs

MAX_GPUS = 16
NVML = "libnvidia-ml.so.1"
LIBRARY_NAMES = {"libcuda.so.1": "libsoftgpu.so", NVML: "libsoftgpu-ml.so"}
"""File names that programs open, and the library behind each."""
MIN_SLICE_NS = 10_000  # as in native/softgpu/server/server.h: below it the server would do nothing but switch
MIN_MEMORY_BYTES = 1 << 20
_BACKLOG = 128
_SHUTDOWN_TIMEOUT_MS = 2000
COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive-process": 3}
"""Names as in nvidia-smi, numbers as in the driver."""


@dataclass(frozen=True, slots=True)
class SoftwareGpu:
    """One software GPU: its socket, whether its server runs, and whether a fault removed the device."""

    ordinal: int
    path: Path
    alive: bool
    name: str = ""
    preset: str = ""
    memory_bytes: int = 0
    pid: int = 0
    clients: int = 0
    is_lost: bool = False


def library(name: str = "libcuda.so.1") -> Path:
    """Return one of the libraries, as installed next to the extension."""
    path = Path(_native.__file__).parent / "_softgpu" / LIBRARY_NAMES[name]
    if not path.exists():
        raise SetupError(f"{path} is missing: cotenant was installed without its software GPU")
    return path


def presets() -> list[str]:
    """Return the device presets by key."""
    return _native.device_preset_keys()


def socket_of(directory: Path, ordinal: int) -> Path:
    """Return the socket of a GPU's device server."""
    return directory.absolute() / f"gpu{ordinal}.sock"


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigError("directory", str(path.parent), f"a socket cannot be created there: {error}") from error
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener


def _spawn(directory: Path, ordinal: int, preset: str, numbers: tuple[int, ...], costs: GpuCosts) -> None:
    path = socket_of(directory, ordinal)
    with _listen(path) as listener, (directory / f"gpu{ordinal}.log").open("ab") as log:
        command = [sys.executable, "-m", "cotenant.softgpu.server", str(listener.fileno()), preset]
        command += [str(ordinal), uuid.uuid4().hex, *map(str, numbers), costs.packed().hex()]
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            cwd="/",
            check=False,
        )
    # The socket listens already, so the request waits in it until the server accepts: no polling.
    try:
        counters = wire.report(path, timeout_s=30.0)
    except WorldError as error:
        raise WorldError(f"software GPU {ordinal} did not start, see {directory / f'gpu{ordinal}.log'}") from error
    path.with_suffix(".pid").write_text(f"{counters['pid']}\n")  # a hung server cannot be asked later


def create(
    directory: Path,
    preset: str,
    count: int,
    *,
    memory_bytes: int | None = None,
    compute_mode: str = "default",
    context_bytes: int = 0,
    counts_code: bool = False,
    costs: GpuCosts = IDEAL,
) -> list[SoftwareGpu]:
    """Start `count` software GPUs in a directory and return when each answers. None keeps the value of the preset.

    `context_bytes` of device memory are used by each context; with `counts_code` loaded code uses memory as well.
    """
    directory = directory.absolute()
    try:
        _native.device_preset(preset)
    except LookupError:
        raise ConfigError("gpu", preset, f"known devices are {', '.join(presets())}") from None
    if not 1 <= count <= MAX_GPUS:
        raise ConfigError("count", count, f"a directory holds 1 to {MAX_GPUS} software GPUs")
    if memory_bytes is not None and memory_bytes < MIN_MEMORY_BYTES:
        raise ConfigError("--memory", memory_bytes, "a software GPU has at least 1 MiB of memory")
    if costs.device.slice < MIN_SLICE_NS:
        raise ConfigError(
            "--slice", f"{int(costs.device.slice)} ns", "a time slice lasts at least 10us, the time of a switch"
        )
    if context_bytes and context_bytes >= (memory_bytes or int(_native.device_preset(preset)["memory_bytes"])):
        raise ConfigError("--context-memory", context_bytes, "a context must leave some of the device's memory")
    if compute_mode not in COMPUTE_MODES:
        raise ConfigError("--compute-mode", compute_mode, f"there are {', '.join(COMPUTE_MODES)}")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(gpu.alive for gpu in gpus(directory)):
        raise ConfigError("directory", str(directory), "it already holds running software GPUs; destroy them first")
    destroy(directory)
    _link_libraries(directory)
    make_programs(directory / "bin")
    numbers = (memory_bytes or 0, context_bytes, int(counts_code))
    try:
        for ordinal in range(count):
            _spawn(directory, ordinal, preset, numbers, costs)
            wire.compute_mode(socket_of(directory, ordinal), COMPUTE_MODES[compute_mode])
    except (WorldError, ConfigError):
        destroy(directory)
        raise
    return gpus(directory)


def _link_libraries(directory: Path) -> None:
    lib = directory / "lib"
    lib.mkdir(exist_ok=True)
    for name in LIBRARY_NAMES:
        (lib / name).unlink(missing_ok=True)
        (lib / name).symlink_to(library(name))


def gpus(directory: Path) -> list[SoftwareGpu]:
    """Return the software GPUs of a directory, including dead ones."""
    result = []
    for ordinal in range(MAX_GPUS):
        path = socket_of(directory, ordinal)
        if not path.exists():
            break
        try:
            counters = wire.report(path)
        except (WorldError, PeerError):
            result.append(SoftwareGpu(ordinal, path, alive=False, pid=_server_of(path) or 0))
            continue
        result.append(
            SoftwareGpu(
                ordinal,
                path,
                alive=True,
                name=counters["name"],
                preset=counters["preset"],
                memory_bytes=counters["memory_bytes"],
                pid=counters["pid"],
                clients=len(counters["clients"]),
                is_lost=counters["lost"],
            )
        )
    return result


def inspect(directory: Path, ordinal: int) -> dict[str, Any]:
    """Return the counters of one software GPU: device, clients, delays between clients, unsupported calls."""
    return wire.report(socket_of(directory, ordinal))


def destroy(directory: Path) -> int:
    """End the software GPUs of a directory and return their number; their clients see a lost device.

    A server that does not stop is killed, because it would otherwise outlive its socket.
    """
    ended = 0
    for ordinal in range(MAX_GPUS):
        path = socket_of(directory, ordinal)
        if not path.exists():
            break
        with contextlib.suppress(WorldError, PeerError):
            wire.shut_down(path, timeout_s=2.0)
        _end_server(path)
        for file in (path, path.with_suffix(".log"), path.with_suffix(".pid")):
            file.unlink(missing_ok=True)
        ended += 1
    for name in (
        *(f"lib/{library_name}" for library_name in LIBRARY_NAMES),
        *(f"bin/{program}" for program in PROGRAMS),
    ):
        (directory.absolute() / name).unlink(missing_ok=True)
    for folder in ("lib", "bin"):
        with contextlib.suppress(OSError):  # removed already, or not empty
            (directory.absolute() / folder).rmdir()
    return ended


def _server_of(path: Path) -> int | None:
    """Return the server's process if it runs. The kernel would name the creator of the socket instead."""
    try:
        pid = int(path.with_suffix(".pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if b"cotenant.softgpu.server" in command else None


def _end_server(path: Path) -> None:
    pid = _server_of(path)
    if pid is None:
        return
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        waiting = select.poll()
        waiting.register(process, select.POLLIN)
        if not waiting.poll(_SHUTDOWN_TIMEOUT_MS):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            waiting.poll()
    finally:
        os.close(process)


def env(directory: Path, *, base: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables with which a program finds these GPUs; `base` is its environment."""
    directory = directory.absolute()
    environ = {"PATH": os.defpath, **(os.environ if base is None else base)}
    added = {"LD_LIBRARY_PATH": directory / "lib", "PATH": directory / "bin"}
    paths = {
        name: ":".join(filter(None, (str(own_directory), environ.get(name, ""))))
        for name, own_directory in added.items()
    }
    return {**paths, "COTENANT_SOFTGPU": str(directory)}
