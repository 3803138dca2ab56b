"""The hook's list equals the driver's: every name exported, every prototype and twin as NVIDIA's headers have it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cotenant.hook import record, shim
from cotenant.hook import ring_format as ring
from tests.native.test_softgpu_abi import assert_compiles, headers
from tests.support.tools import ROOT

pytestmark = pytest.mark.live

HOOK = ROOT / "native" / "hook" / "entry"


def listed() -> dict[str, list[str]]:
    """Return every symbol of the list with its parameter types, including twins and functions that the hook calls."""
    text = re.sub(r"/\*.*?\*/", "", (HOOK / "hooked.def").read_text(), flags=re.DOTALL)
    symbols = {}
    for macro, body in re.findall(r"^(ONE|TWO|ENGINE|CALLED)\((.*?)\)$", text, re.DOTALL | re.MULTILINE):
        words = [word.strip() for word in " ".join(body.split()).split(",")]
        if macro == "CALLED":
            symbols[words[0]] = words[1:]
        elif macro == "ONE":
            symbols[words[1]] = words[2:]
        elif macro == "TWO":
            symbols |= dict.fromkeys((words[1], words[1] + words[2]), words[3:])
        else:
            symbols |= dict.fromkeys((words[0], words[0] + words[1]), words[5:])
    return symbols


def driver_names() -> dict[str, tuple[str, bool]]:
    text = (ROOT / "native" / "softgpu" / "abi" / "names.def").read_text()
    rows = re.findall(r"^NAME\((\w+), (\w+), \d+, ([01])\)", text, re.MULTILINE)
    return {symbol: (base, twin == "1") for symbol, base, twin in rows}


TAKES_MEMORY = re.compile(
    "Alloc|CtxCreate|CtxRetain|ArrayCreate|MemCreate|PoolCreate|MulticastCreate|EndpointCreate|Import|OpenMemHandle"
    "|(Module|Library|Func)Load|SetLimit|GraphicsMap|GLMapBuffer"
)
SAME_AS_TWIN = {"cuStreamGetCtx": "either default stream belongs to the current context"}
TAKES_NONE = {
    "cuMemAllocHost": "the host's",
    "cuMemAllocHost_v2": "the host's",
    "cuMemHostAlloc": "the host's",
    "cuGraphAddMemAllocNode": "describes what a launch will take",
    "cuGraphMemAllocNodeGetParams": "asks",
    "cuMemGetAllocationGranularity": "asks",
    "cuMemGetAllocationPropertiesFromHandle": "asks",
    "cuModuleGetLoadingMode": "asks",
    "cuTensorMapSetAllocationClass": "says how a map is read",
    "cuImportExternalSemaphore": "a semaphore",
}


def test_every_call_that_allocates_device_memory_is_hooked_or_documented() -> None:
    escapes = (ROOT / "docs" / "concepts" / "memory.md").read_text()
    hooked = listed()
    uncounted = [
        symbol
        for symbol in {name.removesuffix("_ptsz").removesuffix("_ptds") for name in driver_names()}
        if TAKES_MEMORY.search(symbol) and symbol not in hooked and symbol not in TAKES_NONE
        if not symbol.startswith("cuGLMapBufferObject") and f"`{symbol}`" not in escapes
    ]
    assert uncounted == []


def test_hooked_names_and_twins_exist_in_the_driver() -> None:
    names, ours = driver_names(), listed()
    assert len(ours) > 170
    assert set(ours) <= set(names)
    marked = {symbol for symbol in ours if symbol.endswith(("_ptsz", "_ptds"))}
    assert marked == {symbol for symbol in ours if names[symbol][1]}
    for symbol in ours:  # a call that is hooked in one form is hooked in its twin's form too
        for twin in (f"{symbol}_ptsz", f"{symbol}_ptds"):
            assert twin not in names or twin in ours or symbol in SAME_AS_TWIN, twin


def test_hook_library_exports_exactly_the_listed_symbols() -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", shim.hook_library()], capture_output=True, text=True, check=True
    )
    exported = set(re.findall(r" T (\w+)$", done.stdout, re.MULTILINE))
    text = (HOOK / "hooked.def").read_text()
    called_only = set(re.findall(r"^CALLED\((\w+),", text, re.MULTILINE))
    nvmls = {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"}
    request_calls = {f"cotenant_hook_request_{call}" for call in ("begin", "end", "took")}
    assert exported == (set(listed()) - called_only) | {"dlsym"} | nvmls | request_calls


@pytest.mark.skipif(not headers(), reason="NVIDIA's cuda.h is not here: install nvidia-cuda-runtime")
@pytest.mark.parametrize("include", headers(), ids=str)
def test_prototypes_equal_nvidias(include: Path, tmp_path: Path) -> None:
    """A second declaration that differs from the first is an error: the compiler compares for us."""
    head = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"
    done = subprocess.run(
        ["gcc", "-E", "-P", f"-I{include}", "-x", "c", "-"], input=head, capture_output=True, text=True, check=True
    )
    declared = set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", done.stdout))
    ours = listed()
    missing = set(ours) - declared - {"cuGetProcAddress_v2_ptsz"}  # exported by drivers, declared by no header
    assert len(missing) < 8, missing  # an older header lacks the newest calls
    declarations = "\n".join(f"CUresult {name}({', '.join(ours[name])});" for name in ours if name in declared)
    assert_compiles(f"{head}{declarations}\n", tmp_path, include)


LAYOUT = """
#include "hook/timing/trace.h"
#include <stdio.h>
int main(void)
{
    printf("%zu %zu %zu %d %d %d %d %zu %zu\\n", sizeof(struct ct_record_kernel), sizeof(struct ct_record_interval),
           offsetof(struct ct_record_header, device), CT_RECORD_INTERVALS_AT, CT_RECORD_KERNELS, CT_RECORD_INTERVALS,
           CT_RECORD_TRACE_AT, sizeof(struct ct_trace_header), offsetof(struct ct_trace_entry, kind));
    for (unsigned long long value = 0; value < 1ull << 37; value = value * 9 / 8 + 1)
        printf("%llu:%u ", value, ct_bucket_of(value));
}
"""


def test_record_layout_agrees_between_c_and_python(tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    source.write_text(LAYOUT)
    subprocess.run(["gcc", f"-I{ROOT / 'native'}", str(source), "-o", str(tmp_path / "layout")], check=True)
    output = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout
    sizes, buckets = output.split("\n")
    assert [int(word) for word in sizes.split()] == [
        record._KERNEL_BYTES,
        record._INTERVAL_BYTES,
        record._HEADER.size - 512 - 64,
        record.INTERVALS_AT,
        record.KERNEL_LIMIT,
        record.INTERVAL_LIMIT,
        record.RING_AT,
        ring.HEADER.size,
        ring.ENTRY.size - 4,
    ]
    for pair in buckets.split():
        value, bucket = map(int, pair.split(":"))
        middle = record._middle(bucket)
        if bucket < record._BUCKETS - 1:
            assert abs(middle - value) <= value / 32, value
