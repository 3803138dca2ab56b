"""Writes native/softgpu/names.def: every name the driver API exports, and which version of a call each one answers.

Usage: names.py INCLUDE_DIR... > native/softgpu/names.def

Each INCLUDE_DIR holds the headers of one CUDA toolkit (the package nvidia-cuda-runtime has them); the list is their
union. A name has one row: NAME(symbol, base, since, twin). `base` is what a client passes to cuGetProcAddress, `since`
the CUDA version from which this symbol answers that base, `twin` says whether it is the per-thread default stream twin.
"""

# ruff: noqa: INP001, T201, S603
# A program of its own: it prints its result and starts the compiler it is asked to start.

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
# Types of neighbouring systems that those headers name and this machine need not have.
STUBS = """
typedef unsigned int GLuint; typedef unsigned int GLenum;
typedef unsigned int VdpDevice; typedef unsigned int VdpFuncId;
typedef int VdpStatus; typedef VdpStatus VdpGetProcAddress(VdpDevice, VdpFuncId, void **);
typedef unsigned int VdpVideoSurface; typedef unsigned int VdpOutputSurface;
typedef void *EGLImageKHR; typedef void *EGLStreamKHR; typedef void *EGLSyncKHR; typedef int EGLint;
"""
# What newer clients ask for although no published header has it yet: (symbol, since).
AHEAD = (("cuFabricCpyBatchAsync", 13050), ("cuTensorMapSetAllocationClass", 13050))
NEIGHBOURS = re.compile(r"^\s*#\s*include\s*[<\"](?:GL/|EGL/|vdpau/|KHR/|cuda\w+\.h).*$|^\s*#\s*error.*$", re.MULTILINE)


def preprocessed(include: Path, header: str, flags: list[str]) -> str:
    """The header after the preprocessor, with what belongs to other systems left out."""
    path = include / header
    if not path.exists():
        return ""
    text = STUBS + NEIGHBOURS.sub("", path.read_text(errors="replace"))
    command = ["gcc", "-E", "-P", f"-I{include}", *flags, "-x", "c", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def symbols(includes: list[Path]) -> set[str]:
    """Every function the headers declare in any mode."""
    found: set[str] = set()
    for include in includes:
        for header in HEADERS:
            for flags in MODES:
                found.update(
                    re.findall(r"CUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w+)\s*\(", preprocessed(include, header, flags))
                )
    return found


def versions(includes: list[Path]) -> dict[tuple[str, str], list[int]]:
    """(base, twin suffix) -> the CUDA versions at which the call changed, oldest first."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for include in includes:
        for header in TYPEDEFS:
            for flags in MODES:
                text = preprocessed(include, header, flags)
                for base, since, twin in re.findall(r"\*\s*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\s*\)", text):
                    found[base, twin].add(int(since))
    return {key: sorted(value) for key, value in found.items()}


def generation(symbol: str) -> tuple[str, int, str]:
    """cuMemcpyHtoD_v2_ptds -> (cuMemcpyHtoD, 2, _ptds)."""
    match = re.fullmatch(r"(cu\w+?)(?:_v(\d+))?(_ptds|_ptsz)?", symbol)
    assert match is not None
    return match[1], int(match[2] or 1), match[3] or ""


def main(arguments: list[str]) -> int:
    includes = [Path(a) for a in arguments]
    families: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for symbol in symbols(includes):
        base, number, twin = generation(symbol)
        families[base, twin].append((number, symbol))
    dates = versions(includes)
    rows: list[tuple[str, str, int, int]] = []
    for (base, twin), members in families.items():
        known = dates.get((base, twin), [])
        members.sort()
        # The newest symbol answers the newest version; a header that dates fewer versions than it has symbols dates
        # the newest ones, and the undated old ones are left to their own exact name (version 0 means not by base).
        for distance, (_, symbol) in enumerate(reversed(members)):
            since = known[-1 - distance] if distance < len(known) else 0
            rows.append((symbol, base, since, 1 if twin else 0))
        if len(known) != len(members):
            print(f"note: {base}{twin}: symbols {[m[1] for m in members]}, versions {known}", file=sys.stderr)
    rows.extend((symbol, symbol, since, 0) for symbol, since in AHEAD if (symbol, "") not in families)
    print("/* Every name the driver API exports. Written by tools/names.py; do not edit. */")
    print("/* NAME(symbol, base, since, twin) */")
    for symbol, base, since, twin_flag in sorted(rows):
        print(f"NAME({symbol}, {base}, {since}, {twin_flag})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
