"""The project's NVML header agrees with NVIDIA's Python package in names, codes, sizes and offsets."""

from __future__ import annotations

import ctypes
import inspect
import re
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

from cotenant.softgpu import manage

pytestmark = pytest.mark.live

NATIVE = Path(__file__).parents[2] / "native"
NVML = NATIVE / "softgpu" / "nvml"
# Our struct, and the one of nvidia-ml-py. Fields have the same names but for those listed behind.
STRUCTS: dict[str, tuple[str, dict[str, str]]] = {
    "nvmlPciInfo_t": ("nvmlPciInfo_t", {}),
    "nvmlPciInfo_v2_t": ("nvmlPciInfo_v2_t", {f"reserved{i}": f"reserved[{i}]" for i in range(4)}),
    "nvmlPciInfoExt_v1_t": ("nvmlPciInfoExt_v1_t", {}),
    "nvmlMemory_t": ("c_nvmlMemory_t", {}),
    "nvmlMemory_v2_t": ("c_nvmlMemory_v2_t", {}),
    "nvmlBAR1Memory_t": ("c_nvmlBAR1Memory_t", {}),
    "nvmlUtilization_t": ("c_nvmlUtilization_t", {}),
    "nvmlValue_t": ("c_nvmlValue_t", {}),
    "nvmlSample_t": ("c_nvmlSample_t", {}),
    "nvmlFieldValue_t": ("c_nvmlFieldValue_t", {}),
    "nvmlViolationTime_t": ("c_nvmlViolationTime_t", {}),
    "nvmlProcessInfo_t": ("c_nvmlProcessInfo_v2_t", {}),
    "nvmlProcessDetail_v1_t": ("c_nvmlProcessDetail_v1_t", {}),
    "nvmlProcessDetailList_t": ("c_nvmlProcessDetailList_v1_t", {}),
    "nvmlProcessUtilizationSample_t": ("c_nvmlProcessUtilizationSample_t", {}),
    "nvmlProcessUtilizationInfo_v1_t": ("c_nvmlProcessUtilizationInfo_v1_t", {}),
    "nvmlProcessesUtilizationInfo_t": ("c_nvmlProcessesUtilizationInfo_v1_t", {}),
    "nvmlTemperature_v1_t": ("c_nvmlTemperature_v1_t", {}),
    "nvmlMarginTemperature_v1_t": ("c_nvmlMarginTemperature_v1_t", {}),
    "nvmlEccErrorCounts_t": ("c_nvmlEccErrorCounts_t", {}),
    "nvmlRowRemapperHistogramValues_t": ("c_nvmlRowRemapperHistogramValues", {}),
    "nvmlDeviceAttributes_t": ("c_nvmlDeviceAttributes", {}),
    "nvmlUUID_v1_t": ("c_nvmlUUID_t", {}),
    "nvmlSystemDriverBranchInfo_v1_t": ("c_nvmlSystemDriverBranchInfo_v1_t", {}),
    "nvmlEventData_t": ("c_nvmlEventData_t", {}),
    "nvmlGpmSupport_t": ("c_nvmlGpmSupport_t", {}),
    "nvmlGpmMetric_t": ("c_nvmlGpmMetric_t", {}),
}
VERSIONS = {
    "nvmlMemory_v2_t, 2": pynvml.nvmlMemory_v2,
    "nvmlPciInfoExt_v1_t, 1": pynvml.nvmlPciInfoExt_v1,
    "nvmlProcessDetailList_t, 1": pynvml.nvmlProcessDetailList_v1,
    "nvmlProcessesUtilizationInfo_t, 1": pynvml.ProcessesUtilizationInfo_v1,
    "nvmlTemperature_v1_t, 1": pynvml.nvmlTemperature_v1,
    "nvmlMarginTemperature_v1_t, 1": pynvml.nvmlMarginTemperature_v1,
    "nvmlUUID_v1_t, 1": pynvml.nvmlUUID_v1,
    "nvmlSystemDriverBranchInfo_v1_t, 1": pynvml.SystemDriverBranchInfo_v1,
}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_struct_layouts_and_versions_equal_nvidias(tmp_path: Path) -> None:
    checks = []
    for ours, (theirs, renamed) in STRUCTS.items():
        struct = getattr(pynvml, theirs)
        checks.append(f'_Static_assert(sizeof({ours}) == {ctypes.sizeof(struct)}, "size of {ours}");')
        for field in struct._fields_:
            name = renamed.get(field[0], field[0])
            offset = getattr(struct, field[0]).offset
            checks.append(f'_Static_assert(__builtin_offsetof({ours}, {name}) == {offset}, "{ours}.{name}");')
    # The list of metrics grew with NVML: what must fit is where it begins.
    metrics = pynvml.c_nvmlGpmMetricsGet_t
    for name in ("version", "numMetrics", "sample1", "sample2", "metrics"):
        offset = getattr(metrics, name).offset
        checks.append(f'_Static_assert(__builtin_offsetof(nvmlGpmMetricsGet_t, {name}) == {offset}, "{name}");')
    checks += [
        f'_Static_assert(NVML_VERSION({arguments}) == {number}u, "{arguments}");'
        for arguments, number in VERSIONS.items()
    ]
    source = tmp_path / "check.c"
    source.write_text('#include "softgpu/nvml/nvml.h"\n' + "\n".join(checks) + "\n")
    command = ["gcc", "-std=gnu11", "-fsyntax-only", f"-I{NATIVE}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def test_error_codes_equal_nvidias_and_have_distinct_texts() -> None:
    rows = re.findall(r'NVML_ERROR\((\w+), (\d+), "(.+)"\)', (NVML / "errors.def").read_text())
    assert {name: int(code) for name, code, _ in rows} == {
        name: value
        for name, value in vars(pynvml).items()
        if name == "NVML_SUCCESS" or (name.startswith("NVML_ERROR_") and isinstance(value, int))
    }
    assert len({text for _, _, text in rows}) == len(rows)


def test_library_has_every_function_that_nvidias_package_calls() -> None:
    library = ctypes.CDLL(str(manage.library(manage.NVML)))
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', inspect.getsource(pynvml)))
    assert len(called) > 400
    assert [name for name in sorted(called) if not hasattr(library, name)] == []


def test_each_library_has_its_own_soname_and_names() -> None:
    """A monitor that loads NVML must not be found to have loaded libcuda."""
    libraries = {name: ctypes.CDLL(str(manage.library(name))) for name in manage.LIBRARY_NAMES}
    assert hasattr(libraries["libcuda.so.1"], "cuInit")
    assert not hasattr(libraries["libcuda.so.1"], "nvmlInit_v2")
    assert hasattr(libraries[manage.NVML], "nvmlInit_v2")
    assert not hasattr(libraries[manage.NVML], "cuInit")
    for name in ("libcuda.so.1", manage.NVML):  # the names without a version lead to the same files
        assert name.encode() + b"\0" in manage.library(name).read_bytes()
