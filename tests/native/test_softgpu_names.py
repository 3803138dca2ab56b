"""The software driver exports every name at its own address, and cuGetProcAddress chooses as the driver does."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.softgpu import manage

pytestmark = pytest.mark.live

NAMES = Path(__file__).parents[2] / "native" / "softgpu" / "abi" / "names.def"
ROWS = re.findall(r"^NAME\((\w+), (\w+), (\d+), (\d)\)", NAMES.read_text(), re.MULTILINE)
LEGACY, PER_THREAD = 1, 2
DRIVER_VERSION = 13000


def has_older_form(base: str, twin: str) -> bool:
    """Return whether the driver has a form of this call, so that a newer one is not returned."""
    return any(row[1] == base and row[3] == twin and int(row[2]) <= DRIVER_VERSION for row in ROWS)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The shared library itself; no device is needed to ask for names."""
    return ctypes.CDLL(str(manage.library()))


def address(library: ctypes.CDLL, symbol: str) -> int:
    return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0


def ask(library: ctypes.CDLL, base: str, version: int, flags: int = 0) -> tuple[int, int, int]:
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = library.cuGetProcAddress_v2(
        base.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status)
    )
    return result, pointer.value or 0, status.value


def test_every_name_has_its_own_address(library: ctypes.CDLL) -> None:
    addresses = {symbol: address(library, symbol) for symbol, *_ in ROWS}
    assert len(addresses) > 700
    assert len(set(addresses.values())) == len(addresses)


def test_library_exports_only_the_drivers_names() -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(manage.library())], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in done.stdout.splitlines()}
    assert exported == {symbol for symbol, *_ in ROWS}


def test_every_symbol_is_found_by_its_base_name_and_version(library: ctypes.CDLL) -> None:
    for symbol, base, since, twin in ROWS:
        if since == "0" or (int(since) > DRIVER_VERSION and has_older_form(base, twin)):
            continue
        flags = PER_THREAD if twin == "1" else LEGACY
        assert ask(library, base, int(since), flags) == (0, address(library, symbol), 0), symbol


@pytest.mark.parametrize(
    "base, version, flags, symbol",
    [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuLaunchKernel", 12000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, LEGACY, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, PER_THREAD, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 12000, PER_THREAD, "cuMemcpyHtoD_v2_ptds"),
        ("cuInit", 12000, PER_THREAD, "cuInit"),
        ("cuLaunchHostFunc", 13040, 0, "cuLaunchHostFunc"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
    ],
)
def test_version_and_flags_select_the_symbol(
    library: ctypes.CDLL, base: str, version: int, flags: int, symbol: str
) -> None:
    assert ask(library, base, version, flags) == (0, address(library, symbol), 0)


def test_unknown_name_is_reported_as_not_found(library: ctypes.CDLL) -> None:
    assert ask(library, "cuNoSuchCall", 13000) == (500, 0, 1)
    assert ask(library, "cuLaunchKernelEx", 11000) == (500, 0, 2)
    assert ask(library, "cuInit", 13000, 8)[0] == 1
    assert library.cuGetProcAddress_v2(None, None, 13000, ctypes.c_uint64(0), None) == 1


def test_unimplemented_calls_return_not_supported_without_a_device() -> None:
    """In a process of its own: these calls get nonsense for arguments."""
    program = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "answers = library.cuGraphicsUnregisterResource(None), library.cuMemAlloc_v2(None, 0)\n"
        "sys.exit(0 if answers == (801, 3) else 1)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "COTENANT_SOFTGPU"}
    subprocess.run([sys.executable, "-c", program, str(manage.library())], env=environment, check=True, timeout=60)


def test_calls_within_the_library_cannot_be_interposed() -> None:
    done = subprocess.run(["readelf", "-dW", str(manage.library())], capture_output=True, text=True, check=True)
    assert "SYMBOLIC" in done.stdout
    assert "libcuda.so.1" in done.stdout
