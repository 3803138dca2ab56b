"""Generate native/softgpu/abi/names.def: every name that the driver API exports, and the version that it implements.

Usage: names.py INCLUDE_DIR... > native/softgpu/abi/names.def

Each INCLUDE_DIR contains the headers of one CUDA toolkit (from the package nvidia-cuda-runtime); the list is their
union. Each name has one row, NAME(symbol, base, since, is_per_thread): `base` is the name that a client passes to
cuGetProcAddress, `since` the CUDA version from which this symbol implements the base, and `is_per_thread` is 1 for the
variant that uses the per-thread default stream.
"""

# ruff: noqa: INP001, T201, S603
# This is a stand-alone program that prints its result and runs the compiler.

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaVDPAU.h", "cudaEGL.h")
TYPEDEFS = (
    "cudaTypedefs.h",
    "cudaProfilerTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
    "cudaEGLTypedefs.h",
)
MODES: tuple[list[str], ...] = (
    ["-D__CUDA_API_VERSION_INTERNAL"],
    [],
    ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"],
)
# Types of other libraries that the headers refer to and that need not be installed.
STUBS = """
typedef unsigned int GLuint; typedef unsigned int GLenum;
typedef unsigned int VdpDevice; typedef unsigned int VdpFuncId;
typedef int VdpStatus; typedef VdpStatus VdpGetProcAddress(VdpDevice, VdpFuncId, void **);
typedef unsigned int VdpVideoSurface; typedef unsigned int VdpOutputSurface;
typedef void *EGLImageKHR; typedef void *EGLStreamKHR; typedef void *EGLSyncKHR; typedef int EGLint;
"""
# Names that newer clients request although no published header declares them: (symbol, since).
AHEAD = (("cuFabricCpyBatchAsync", 13050), ("cuTensorMapSetAllocationClass", 13050))
FOREIGN_INCLUDES = re.compile(
    r"^\s*#\s*include\s*[<\"](?:GL/|EGL/|vdpau/|KHR/|cuda\w+\.h).*$|^\s*#\s*error.*$", re.MULTILINE
)


def preprocessed(include: Path, header: str, flags: list[str]) -> str:
    """Return the preprocessed header without the parts that need other libraries."""
    path = include / header
    if not path.exists():
        return ""
    text = STUBS + FOREIGN_INCLUDES.sub("", path.read_text(errors="replace"))
    command = ["gcc", "-E", "-P", f"-I{include}", *flags, "-x", "c", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def symbols(includes: list[Path]) -> set[str]:
    """Return every function that the headers declare in any mode."""
    found: set[str] = set()
    for include in includes:
        for header in HEADERS:
            for flags in MODES:
                found.update(
                    re.findall(r"CUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w+)\s*\(", preprocessed(include, header, flags))
                )
    return found


def versions(includes: list[Path]) -> dict[tuple[str, str], list[int]]:
    """Map (base, per-thread suffix) to the CUDA versions at which the call changed, oldest first."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for include in includes:
        for header in TYPEDEFS:
            for flags in MODES:
                text = preprocessed(include, header, flags)
                for base, since, suffix in re.findall(r"\*\s*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\s*\)", text):
                    found[base, suffix].add(int(since))
    return {key: sorted(value) for key, value in found.items()}


def generation(symbol: str) -> tuple[str, int, str]:
    """Split a symbol: cuMemcpyHtoD_v2_ptds becomes (cuMemcpyHtoD, 2, _ptds)."""
    match = re.fullmatch(r"(cu\w+?)(?:_v(\d+))?(_ptds|_ptsz)?", symbol)
    assert match is not None
    return match[1], int(match[2] or 1), match[3] or ""


def main(arguments: list[str]) -> int:
    includes = [Path(a) for a in arguments]
    families: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for symbol in symbols(includes):
        base, number, suffix = generation(symbol)
        families[base, suffix].append((number, symbol))
    dates = versions(includes)
    rows: list[tuple[str, str, int, int]] = []
    for (base, suffix), symbols_of_base in families.items():
        dated = dates.get((base, suffix), [])
        symbols_of_base.sort()
        # The newest symbol implements the newest version. If a header dates fewer versions than it has symbols, it
        # dates the newest ones; the older symbols get version 0 and are found only by their exact name.
        for distance, (_, symbol) in enumerate(reversed(symbols_of_base)):
            since = dated[-1 - distance] if distance < len(dated) else 0
            rows.append((symbol, base, since, 1 if suffix else 0))
        if len(dated) != len(symbols_of_base):
            print(f"note: {base}{suffix}: symbols {[m[1] for m in symbols_of_base]}, versions {dated}", file=sys.stderr)
    rows.extend((symbol, symbol, since, 0) for symbol, since in AHEAD if (symbol, "") not in families)
    print("/* Every name that the driver API exports. Generated by tools/names.py; do not edit. */")
    print("/* NAME(symbol, base, since, is_per_thread) */")
    for symbol, base, since, is_per_thread in sorted(rows):
        print(f"NAME({symbol}, {base}, {since}, {is_per_thread})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
