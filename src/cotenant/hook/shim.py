"""Find the driver that a program would load, and the environment that loads the hook before it."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cotenant import __version__
from cotenant.errors import SetupError, WorldError
from cotenant.runner.process import run_and_capture

DRIVER_NAME: Final = "libcuda.so.1"
NVML_NAME: Final = "libnvidia-ml.so.1"
RECORD_VARIABLE: Final = "COTENANT_RECORD"
SEALED_VARIABLE: Final = "COTENANT_RECORD_SEALED"
"""If it is 1, the hook sends its record to the socket in the record directory, and creates no file there."""
_PREFIX: Final = "libcotenant-"
_CACHE_FILE: Final = Path("/etc/ld.so.cache")
_DEFAULT_DIRECTORIES: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
_LOAD_PROGRAM: Final = (
    "import ctypes; ctypes.CDLL('libcuda.so.1').cuLaunchKernel; "
    "print(*{l.split()[-1] for l in open('/proc/self/maps') if '.so' in l}, sep='\\n')"
)


def hook_library() -> Path:
    """Return the path of the installed hook library."""
    return _installed(f"{_PREFIX}{__version__}.so")


def cuda_shim() -> Path:
    """Return the library that a program loads as libcuda.so.1; it loads the hook, then the driver."""
    return _installed(f"{_PREFIX}shim-{__version__}.so")


def nvml_shim() -> Path:
    """Return the library that a program loads as libnvidia-ml.so.1; it loads the hook, then NVML."""
    return _installed(f"{_PREFIX}nvml-{__version__}.so")


def null_driver() -> Path:
    """Return a driver whose calls do nothing, for measuring the overhead of the hook."""
    return _installed(f"{_PREFIX}idle-{__version__}.so")


def image_check() -> Path:
    """Return the program with which a container runtime finds out whether an image can load the hook."""
    return _installed(f"cotenant-image-check-{__version__}")


def _installed(name: str) -> Path:
    from cotenant import _native  # noqa: PLC0415  loaded only where there is a driver

    path = Path(_native.__file__).parent / "_hook" / name
    if not path.exists():
        raise SetupError(f"{path} is missing: cotenant was installed without its hook; reinstall it")
    return path


def find_driver(environ: Mapping[str, str]) -> Path | None:
    """Return the libcuda.so.1 that a program with this environment would load without the hook."""
    return _find(DRIVER_NAME, environ)


def find_nvml(environ: Mapping[str, str]) -> Path | None:
    """Return the libnvidia-ml.so.1 that such a program would load; None where there is none."""
    return _find(NVML_NAME, environ)


def _find(name: str, environ: Mapping[str, str]) -> Path | None:
    for directory in _search_path(name, environ):
        path = Path(directory) / name
        with contextlib.suppress(OSError):
            real = path.resolve(strict=True)
            if not real.name.startswith(_PREFIX):
                return path.absolute()
    return None


def _search_path(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    yield from filter(None, environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"))
    yield from _cached(name)
    yield from _DEFAULT_DIRECTORIES


def _cached(library_name: str) -> Iterator[str]:
    """Yield the directories of a library in the linker's cache."""
    if not _may_be_cached(library_name):
        return
    for line in _linker_cache().splitlines():
        if library_name not in line:
            continue
        name, _, path = line.partition("=>")
        if name.split()[:1] == [library_name] and "x32" not in name and path.strip():
            yield str(Path(path.strip()).parent)


def _may_be_cached(library_name: str) -> bool:
    """Return whether the linker's cache contains the name at all; if not, `ldconfig` need not be started."""
    try:
        return library_name.encode() in _CACHE_FILE.read_bytes()
    except OSError:
        return True


@functools.cache
def _linker_cache() -> str:
    """Return the list that `ldconfig -p` prints, once per process; `ldconfig` is often not on a user's PATH."""
    import shutil  # noqa: PLC0415  slow to import
    import subprocess  # noqa: PLC0415  as above

    tool = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    if tool is None:
        return ""
    return subprocess.run([tool, "-p"], capture_output=True, text=True, errors="replace", check=False).stdout


def make_shim(directory: Path, driver: Path, nvml: Path | None = None) -> None:
    """Create a directory of links that goes first on a program's library path; without NVML it has no NVML link."""
    directory.mkdir(mode=0o700)
    links = [
        (DRIVER_NAME, cuda_shim()),
        ("libcuda.so", cuda_shim()),
        ("libcotenant.so", hook_library()),
        ("libcuda-real.so.1", driver),
    ]
    if nvml is not None:
        links += [(NVML_NAME, nvml_shim()), ("libnvidia-ml.so", nvml_shim()), ("libnvidia-ml-real.so.1", nvml)]
    for name, target in links:
        (directory / name).symlink_to(target)


def environment(mode: str, shim: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add: LD_LIBRARY_PATH with the shim directory, or LD_PRELOAD with the hook."""
    name, added, separator = (
        ("LD_LIBRARY_PATH", str(shim), ":") if mode == "shim" else ("LD_PRELOAD", str(hook_library()), " ")
    )
    before = environ.get(name, "")
    return {name: f"{added}{separator}{before}" if before else added}


def try_load(shim: Path, environ: Mapping[str, str]) -> str:
    """Load the driver through the shim in another process; return what went wrong, empty if nothing did."""
    variables = {**environ, **environment("shim", shim, environ)}
    try:
        loaded = run_and_capture([sys.executable, "-c", _LOAD_PROGRAM], variables).splitlines()
    except WorldError as error:
        return str(error)
    return "" if any(_PREFIX in line for line in loaded) else "the driver was loaded without the hook"
