"""Which driver would a program load, and what must its environment be so that the hook stands before it?"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cotenant import __version__, _native
from cotenant.errors import WorldError
from cotenant.live.process import run_to_end

DRIVER_NAME: Final = "libcuda.so.1"
NVML_NAME: Final = "libnvidia-ml.so.1"
RECORD_VARIABLE: Final = "COTENANT_RECORD"
LEDGER_VARIABLE: Final = "COTENANT_LEDGER_FD"
"""Two descriptors with a comma between them: the ledger of the tenant's device to read, and to write."""
_OURS: Final = "libcotenant-"
_LAST_PLACES: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
_LOADED: Final = (
    "import ctypes; ctypes.CDLL('libcuda.so.1').cuLaunchKernel; "
    "print(*{l.split()[-1] for l in open('/proc/self/maps') if '.so' in l}, sep='\\n')"
)


def library() -> Path:
    """The hook, as it was installed beside the extension."""
    return _installed(f"{_OURS}{__version__}.so")


def door() -> Path:
    """What a program finds as libcuda.so.1: it leads to the hook first and to the driver second."""
    return _installed(f"{_OURS}door-{__version__}.so")


def nvml_door() -> Path:
    """What a program finds as libnvidia-ml.so.1: the hook first, NVML second."""
    return _installed(f"{_OURS}nvml-{__version__}.so")


def idle_driver() -> Path:
    """A driver that does nothing, for measuring the way to it."""
    return _installed(f"{_OURS}idle-{__version__}.so")


def _installed(name: str) -> Path:
    path = Path(_native.__file__).parent / "_hook" / name
    if not path.exists():
        raise WorldError(f"{path} is missing: cotenant was installed without its hook")
    return path


def find_driver(environ: Mapping[str, str]) -> Path | None:
    """The libcuda.so.1 that a program with this environment would load if we were not there."""
    return _find(DRIVER_NAME, environ)


def find_nvml(environ: Mapping[str, str]) -> Path | None:
    """The same for NVML, which a program can do without."""
    return _find(NVML_NAME, environ)


def _find(name: str, environ: Mapping[str, str]) -> Path | None:
    for directory in _search_path(name, environ):
        path = Path(directory) / name
        with contextlib.suppress(OSError):
            real = path.resolve(strict=True)
            if not real.name.startswith(_OURS):
                return path.absolute()
    return None


def _search_path(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    yield from filter(None, environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"))
    yield from _cached(name)
    yield from _LAST_PLACES


def _cached(library_name: str) -> Iterator[str]:
    """What the linker's cache knows; `ldconfig` is often not on a user's PATH."""
    tool = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    if tool is None:
        return
    said = subprocess.run([tool, "-p"], capture_output=True, text=True, errors="replace", check=False).stdout
    for line in said.splitlines():
        name, _, path = line.partition("=>")
        if name.split()[:1] == [library_name] and "x32" not in name and path.strip():
            yield str(Path(path.strip()).parent)


def make_shim(directory: Path, driver: Path, nvml: Path | None = None) -> None:
    """Fill a directory that comes first on a program's library path; where there is no NVML, none is found in it."""
    directory.mkdir(mode=0o700)
    links = [
        (DRIVER_NAME, door()),
        ("libcuda.so", door()),
        ("libcotenant.so", library()),
        ("libcuda-real.so.1", driver),
    ]
    if nvml is not None:
        links += [(NVML_NAME, nvml_door()), ("libnvidia-ml.so", nvml_door()), ("libnvidia-ml-real.so.1", nvml)]
    for name, target in links:
        (directory / name).symlink_to(target)


def environment(way: str, shim: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What to add to an environment: the shim directory in front, or the hook preloaded."""
    name, added, separator = (
        ("LD_LIBRARY_PATH", str(shim), ":") if way == "shim" else ("LD_PRELOAD", str(library()), " ")
    )
    before = environ.get(name, "")
    return {name: f"{added}{separator}{before}" if before else added}


def try_load(shim: Path, environ: Mapping[str, str]) -> str:
    """Load the driver through the door in a process of its own; what went wrong, or nothing."""
    told = {**environ, **environment("shim", shim, environ)}
    try:
        loaded = run_to_end([sys.executable, "-c", _LOADED], told).splitlines()
    except WorldError as error:
        return str(error)
    return "" if any(_OURS in line for line in loaded) else "the driver was loaded past the hook"
