"""The project's driver header agrees with NVIDIA's in every constant, size, offset and prototype."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOFTGPU = ROOT / "native" / "softgpu"
# Ours where NVIDIA's is the same thing under an older or newer name, or not a type there at all.
STRUCTS = {
    "CUlaunchAttribute": ["id", "value"],
    "CUlaunchConfig": ["gridDimX", "blockDimZ", "sharedMemBytes", "hStream", "attrs", "numAttrs"],
    "CUDA_MEMCPY2D": ["srcXInBytes", "srcMemoryType", "srcHost", "dstDevice", "dstPitch", "WidthInBytes", "Height"],
    "CUDA_MEMCPY3D": ["srcLOD", "srcMemoryType", "reserved0", "srcHeight", "dstZ", "dstHost", "dstHeight", "Depth"],
    "CUDA_MEMCPY3D_PEER": ["srcContext", "dstContext", "Depth"],
    "CUdevprop": ["maxThreadsDim", "sharedMemPerBlock", "textureAlign"],
    "CUexecAffinityParam": ["type", "param"],
    "CUctxCreateParams": ["execAffinityParams", "numExecAffinityParams", "cigParams"],
    "CUmemPoolProps": ["allocType", "handleTypes", "location", "maxSize", "usage"],
    "CUmemAccessDesc": ["location", "flags"],
    "CUmemAllocationProp": ["type", "requestedHandleTypes", "location", "win32HandleMetaData", "allocFlags"],
    "CUmemPoolPtrExportData": ["reserved"],
    "CUipcMemHandle": ["reserved"],
    "CUipcEventHandle": ["reserved"],
    "CUmemLocation": ["type"],
    "CUDA_ARRAY_DESCRIPTOR": ["Height", "Format", "NumChannels"],
    "CUDA_ARRAY3D_DESCRIPTOR": ["Depth", "Format", "NumChannels", "Flags"],
    "CUDA_ARRAY_SPARSE_PROPERTIES": ["tileExtent", "miptailSize", "flags"],
    "CUDA_ARRAY_MEMORY_REQUIREMENTS": ["size", "alignment"],
    "CUDA_RESOURCE_DESC": ["res", "res.linear.sizeInBytes", "res.pitch2D.pitchInBytes", "flags"],
    "CUDA_TEXTURE_DESC": ["filterMode", "maxAnisotropy", "maxMipmapLevelClamp", "borderColor", "reserved"],
    "CUDA_RESOURCE_VIEW_DESC": ["format", "depth", "firstMipmapLevel", "lastLayer"],
    "CUstreamBatchMemOpParams": ["waitValue.address", "waitValue.value64", "waitValue.flags", "memoryBarrier.flags"],
    "CUmemcpyAttributes": ["srcAccessOrder", "srcLocHint", "dstLocHint", "flags"],
    "CUtensorMap": [],
    "CUdevResource": ["sm", "sm.smCount", "sm.minSmPartitionSize", "sm.smCoscheduledAlignment"],
    "CUcheckpointLockArgs": ["timeoutMs", "reserved0", "reserved1"],
    "CUcheckpointCheckpointArgs": [],
    "CUcheckpointGpuPair": ["oldUuid", "newUuid"],
    "CUcheckpointRestoreArgs": ["gpuPairs", "gpuPairsCount"],
    "CUcheckpointUnlockArgs": ["reserved"],
    "CUuuid": ["bytes"],
    "CUgraphEdgeData": ["from_port", "to_port", "type"],
    "CUDA_KERNEL_NODE_PARAMS_v1": ["func", "sharedMemBytes", "extra"],
    "CUDA_KERNEL_NODE_PARAMS_v2": ["kernelParams", "kern", "ctx"],
    "CUDA_MEMSET_NODE_PARAMS": ["pitch", "elementSize", "height"],
    "CUDA_MEMSET_NODE_PARAMS_v2": ["ctx"],
    "CUDA_MEMCPY_NODE_PARAMS": ["copyCtx", "copyParams"],
    "CUDA_HOST_NODE_PARAMS": ["fn", "userData"],
    "CUDA_CHILD_GRAPH_NODE_PARAMS": ["graph", "ownership"],
    "CUDA_MEM_ALLOC_NODE_PARAMS": ["accessDescs", "bytesize", "dptr"],
    "CUgraphNodeParams": ["type", "kernel", "memcpy", "free", "reserved2"],
    "CUDA_GRAPH_INSTANTIATE_PARAMS": ["hUploadStream", "hErrNode_out", "result_out"],
    "CUgraphExecUpdateResultInfo": ["result", "errorNode", "errorFromNode"],
    "CUstreamAttrValue": [],
    "CUdeviceptr": [],
    "CUresult": [],
}


def headers() -> list[Path]:
    """Include directories that hold NVIDIA's cuda.h: of the registry package, or of a toolkit."""
    site = Path(sysconfig.get_paths()["purelib"])
    directories = [*sorted(site.glob("nvidia/*/include")), Path("/usr/local/cuda/include")]
    return [directory for directory in directories if (directory / "cuda.h").exists()]


pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not headers(), reason="NVIDIA's cuda.h is not here: install nvidia-cuda-runtime"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler"),
]


def assert_compiles(source: str, tmp_path: Path, *include: Path) -> None:
    file = tmp_path / "check.c"
    file.write_text(source)
    flags = [f"-I{directory}" for directory in include]
    done = subprocess.run(
        ["gcc", "-std=gnu11", "-fsyntax-only", "-Werror", *flags, str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]


def our_constants() -> dict[str, str]:
    """Every enumerator and macro of the abi headers and errors.def, with our number for it."""
    text = "".join(header.read_text() for header in sorted((SOFTGPU / "abi").glob("*.h")))
    constants = dict(re.findall(r"\b(CU(?:DA)?_[A-Z0-9_]+) = (-?\w+)", text))
    constants |= dict(re.findall(r"#define (CU\w+) (0x\w+)", text))
    constants |= dict(re.findall(r"#define (CU_\w+) \(\(CUstream\)(\w+)\)", text))
    constants |= dict(re.findall(r"ERROR\((\w+), (\d+),", (SOFTGPU / "abi" / "errors.def").read_text()))
    return constants


def prototypes() -> dict[str, str]:
    """Every function we define, as the compiler sees it after the macros."""
    functions = {}
    for source in sorted((SOFTGPU / "driver").rglob("*.c")):
        done = subprocess.run(
            ["gcc", "-E", "-P", f"-I{SOFTGPU.parent}", str(source)], capture_output=True, text=True, check=True
        )
        pattern = r'__attribute__\(\(visibility\("default"\)\)\)\s*CUresult\s+(cu\w+)\s*\(([^{;]*?)\)\s*\{'
        for name, arguments in re.findall(pattern, done.stdout):
            functions[name] = " ".join(arguments.split())
    return functions


@pytest.mark.parametrize("include", headers(), ids=str)
def test_constants_equal_nvidias(include: Path, tmp_path: Path) -> None:
    constants = our_constants()
    assert len(constants) > 180
    declared = (include / "cuda.h").read_text(errors="replace")
    declared_constants = {name: number for name, number in constants.items() if re.search(rf"\b{name}\b", declared)}
    # An older header lacks the newest errors; it never lacks more than a few of what we use.
    assert len(constants) - len(declared_constants) < 12, sorted(set(constants) - set(declared_constants))
    checks = "\n".join(
        f'_Static_assert((long long)({name}) == (long long)({number}), "{name}");'
        for name, number in declared_constants.items()
    )
    checks = checks.replace("(long long)(CU_STREAM_", "(__INTPTR_TYPE__)(CU_STREAM_")
    assert_compiles(f"#include <cuda.h>\n{checks}\n", tmp_path, include)


@pytest.mark.parametrize("include", headers(), ids=str)
def test_layouts_equal_nvidias(include: Path, tmp_path: Path) -> None:
    probe = tmp_path / "probe.c"
    lines = []
    for name, fields in STRUCTS.items():
        lines.append(f'printf("sizeof({name}) == %zu\\n", sizeof({name}));')
        lines += [
            f'printf("__builtin_offsetof({name}, {field}) == %zu\\n", __builtin_offsetof({name}, {field}));'
            for field in fields
        ]
    probe.write_text(
        '#include "softgpu/abi/cuda.h"\n#include <stdio.h>\nint main(void) {\n' + "\n".join(lines) + "\n}\n"
    )
    subprocess.run(["gcc", f"-I{SOFTGPU.parent}", str(probe), "-o", str(tmp_path / "probe")], check=True)
    layouts = subprocess.run([str(tmp_path / "probe")], capture_output=True, text=True, check=True).stdout.splitlines()
    checks = "\n".join(f'_Static_assert({line}, "{line}");' for line in layouts)
    assert_compiles(f"#include <cuda.h>\n{checks}\n", tmp_path, include)


@pytest.mark.parametrize("include", headers(), ids=str)
def test_prototypes_equal_nvidias(include: Path, tmp_path: Path) -> None:
    """A second declaration of a function that differs from the first is an error: the compiler compares for us."""
    ours = prototypes()
    assert len(ours) > 220
    profiler = include / "cudaProfiler.h"
    head = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n" + (
        "#include <cudaProfiler.h>\n" if profiler.exists() else ""
    )
    done = subprocess.run(
        ["gcc", "-E", "-P", f"-I{include}", "-x", "c", "-"], input=head, capture_output=True, text=True, check=True
    )
    declared = set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", done.stdout))
    declarations = "\n".join(
        f"CUresult {name}({arguments or 'void'});" for name, arguments in ours.items() if name in declared
    )
    assert_compiles(f"{head}{declarations}\n", tmp_path, include)


def test_every_name_of_the_headers_is_listed() -> None:
    listed = set(re.findall(r"^NAME\((\w+),", (SOFTGPU / "abi" / "names.def").read_text(), re.MULTILINE))
    assert set(prototypes()) <= listed
    for include in headers():
        text = (include / "cuda.h").read_text(errors="replace")
        declared = set(re.findall(r"CUresult CUDAAPI (cu\w+)\s*\(", text))
        assert declared - {"cuGetProcAddress"} <= listed | {name.removesuffix("_v2") for name in listed}
