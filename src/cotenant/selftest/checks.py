"""The checks of the self-test. Each returns what it found, or raises; a check that cannot run here says why."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from cotenant.errors import CotenantError
from cotenant.gate.activity import GateCounts
from cotenant.node.client.connection import list_tenants, read_activity
from cotenant.runner.clock import monotonic_ns, pause
from cotenant.selftest.driver import KERNEL, OUT_OF_MEMORY
from cotenant.selftest.programs import (
    GRAPH_LAUNCHES,
    HELD_BYTES,
    LIBRARY_LAUNCHES,
    MEMORY_GRAPH_LAUNCHES,
    PLAIN_LAUNCHES,
)
from cotenant.selftest.report import CheckResult, CheckStatus
from cotenant.selftest.site import SelftestSite
from cotenant.units.text import round_size
from cotenant.workload.kernel import WorkKind

HOOK_MODES: Final = ("shim", "preload")
_MIB: Final = 1 << 20
_QUOTA_BYTES: Final = 1024 * _MIB
_BIG_BYTES: Final = _QUOTA_BYTES + 64 * _MIB
_CHILDREN: Final = 3
_TRIES: Final = 200
_INTERVAL_S: Final = 0.05
_QUIET_READINGS: Final = 5
_MPS_CONTROL: Final = "nvidia-cuda-mps-control"
_TORCH: Final = """
import json, torch
if not torch.cuda.is_available():
    print(json.dumps({"skipped": "PyTorch finds no GPU; the CUDA runtime library does not accept a software GPU"}))
else:
    torch.manual_seed(0)
    a = torch.randn(256, 256, device="cuda")
    print(json.dumps({"version": torch.__version__, "sum": float((a @ a).double().sum().cpu())}))
"""
_NCCL: Final = """
import json, torch
if not torch.cuda.is_available():
    print(json.dumps({"skipped": "PyTorch finds no GPU"}))
else:
    import os, torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    a = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(a)
    print(json.dumps({"version": list(torch.cuda.nccl.version()), "sum": float(a.sum().cpu())}))
    dist.destroy_process_group()
"""


class CheckFailedError(Exception):
    """A check found a fault."""


class CheckSkippedError(Exception):
    """A check cannot run on this machine."""


class Check(NamedTuple):
    """A check by its name, what it tests, and the function that returns a text and data."""

    name: str
    about: str
    run: Callable[[SelftestSite], tuple[str, Mapping[str, Any]]]


def run_checks(site: SelftestSite, checks: tuple[Check, ...]) -> Iterator[CheckResult]:
    """Run the checks in order and yield the result of each; an exception of a check is its result."""
    for check in checks:
        began_ns = monotonic_ns()
        status, detail, data = CheckStatus.PASSED, "", dict[str, Any]()
        try:
            detail, found = check.run(site)
            data = dict(found)
        except CheckSkippedError as error:
            status, detail = CheckStatus.SKIPPED, str(error)
        except (CheckFailedError, CotenantError, OSError) as error:
            status, detail = CheckStatus.FAILED, str(error)
        finally:
            site.stop_node()
        yield CheckResult(
            name=check.name,
            about=check.about,
            status=status,
            detail=detail,
            data=data,
            seconds=round((monotonic_ns() - began_ns) / 1e9, 3),
        )


def _require(is_true: object, message: str) -> None:
    if not is_true:
        raise CheckFailedError(message)


# ---- the hook ------------------------------------------------------------------------------------------------------


def _equivalence(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    bare = site.run("calls")
    for mode in HOOK_MODES:
        hooked, _ = site.run_hooked(mode, "calls")
        changed = [name for name, code in bare["codes"].items() if hooked["codes"].get(name) != code]
        _require(not changed, f"with the hook loaded by {mode}, these calls gave another result code: {changed}")
        _require(hooked == bare, f"with the hook loaded by {mode}, the kernel gave another result")
    computes = "kernels compute" if bare["is_computed"] else "kernels only take time: this driver does not compute"
    return f"{len(bare['codes'])} calls have the same result codes with the hook; {computes}", bare


def _counting(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    result, records = site.run_hooked("shim", "calls")
    _require(len(records) == 1, f"the hook wrote {len(records)} records instead of 1")
    record = records[0]
    plain = {
        timing.kernel.function: timing.launches
        for timing in record.profile.timings
        if timing.kernel.work is WorkKind.KERNEL
    }
    graphs = sum(timing.launches for timing in record.profile.timings if timing.kernel.work is WorkKind.GRAPH)
    name = KERNEL.decode()
    launches = PLAIN_LAUNCHES + LIBRARY_LAUNCHES * ("library launch 0" in result["codes"])
    graph_launches = GRAPH_LAUNCHES + MEMORY_GRAPH_LAUNCHES * ("memory graph launch 0" in result["codes"])
    _require(plain.get(name) == launches, f"the hook counted {plain.get(name)} of {launches} launches")
    _require(graphs == graph_launches, f"the hook counted {graphs} of {graph_launches} graph launches")
    timed = [timing.device.count for timing in record.profile.timings if timing.kernel.function == name]
    _require(sum(timed) > 0, "the hook timed no launch after captures that failed")
    unknown = list(record.unknown_names)
    _require(not unknown, f"the hook does not know these functions of the driver: {unknown}")
    data = {"launches": plain[name], "graph_launches": graphs, "timed": record.timed, "calls": record.calls}
    return f"all {launches} launches and {graph_launches} graph launches are counted, {record.timed} timed", data


# ---- quotas and processes ------------------------------------------------------------------------------------------


def _quota(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    site.start_node("--mps", "off")
    flags = ["--offline", "--memory", f"{_QUOTA_BYTES}B", "--measure", "never"]
    result = site.run_tenant(flags, "allocations", str(_BIG_BYTES))
    codes: dict[str, list[int]] = result["codes"]
    passed = [name for name, (_, big, _) in codes.items() if big == 0]
    _require(not passed, f"these calls allocated more than the quota: {passed}")
    other = {name: big for name, (_, big, _) in codes.items() if big != OUT_OF_MEMORY}
    _require(not other, f"these calls were refused with a code other than out of memory: {other}")
    denied = [name for name, (small, _, after) in codes.items() if small or after]
    _require(not denied, f"these calls could not allocate 2 MiB within the quota: {denied}")
    total = result["total_bytes"]
    _require(total <= _QUOTA_BYTES, f"cuMemGetInfo reports {round_size(total)} under a quota of 1 GiB")
    return f"{len(codes)} ways to allocate are refused beyond the quota, and work within it", result


def _processes(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    site.start_node("--mps", "off")
    flags = ["--offline", "--name", "family", "--measure", "never"]
    with site.tenant(flags, "holders", str(_CHILDREN)) as family:
        expected_bytes = _CHILDREN * HELD_BYTES
        lines = 0
        for _ in range(_TRIES):
            accounts = [gpu.ledger.accounts for gpu in read_activity(site.directories).gpus if gpu.ledger is not None]
            lines = sum(len(account.lines) for by_slot in accounts for account in by_slot.values())
            held = sum(
                line.allocated_bytes for by_slot in accounts for account in by_slot.values() for line in account.lines
            )
            if lines == _CHILDREN and held == expected_bytes:
                break
            pause(_INTERVAL_S)
        else:
            raise CheckFailedError(f"the node counts {lines} processes of one tenant instead of {_CHILDREN}")
        result = family.finish()
    return f"{_CHILDREN} processes of one tenant are counted, with {round_size(expected_bytes)}", result


# ---- the gate ------------------------------------------------------------------------------------------------------


def _gate(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    site.start_node("--mps", "off")
    common = ["--measure", "never"]
    with (
        site.tenant(["--online", "--name", "online", *common], "launches") as online,
        site.tenant(["--offline", "--name", "offline", *common], "launches") as offline,
    ):
        _await_launches(site, "offline")
        _await_launches(site, "online")
        site.command("pause", "offline")
        paused_at = _quiescent_launches(site, "offline")
        _await_launches(site, "online")
        _require(_counts(site, "offline").launches == paused_at, "a paused tenant launched")
        site.command("resume", "offline")
        _await_launches(site, "offline")
        waits = _counts(site, "offline").waits
        results = {"online": online.finish(), "offline": offline.finish()}
    data = {**{name: result["launches"] for name, result in results.items()}, "offline_waits": waits}
    return f"the offline tenant stopped while paused and waited {waits} times; both finished", data


def _counts(site: SelftestSite, name: str) -> GateCounts:
    """Return a tenant's counters at the gate."""
    slots = {row.tenant.name: row.tenant.grant.slot for row in list_tenants(site.directories).tenants}
    for gpu in read_activity(site.directories).gpus:
        if gpu.gate is not None and slots.get(name) in gpu.gate.counts:
            return gpu.gate.counts[slots[name]]
    return GateCounts()


def _await_launches(site: SelftestSite, name: str) -> None:
    """Wait until a tenant has launched more than now."""
    before = _counts(site, name).launches
    for _ in range(_TRIES):
        if _counts(site, name).launches > before:
            return
        pause(_INTERVAL_S)
    raise CheckFailedError(f"the {name} tenant makes no progress at the gate")


def _quiescent_launches(site: SelftestSite, name: str) -> int:
    """Return a paused tenant's number of launches, once it has not changed for several readings."""
    readings: list[int] = []
    for _ in range(_TRIES):
        readings.append(_counts(site, name).launches)
        if len(readings) >= _QUIET_READINGS and len(set(readings[-_QUIET_READINGS:])) == 1:
            return readings[-1]
        pause(_INTERVAL_S)
    raise CheckFailedError(f"the {name} tenant launches although it is paused")


# ---- MPS, PyTorch, NCCL, costs -------------------------------------------------------------------------------------


def _mps(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    if not site.is_software_gpu and shutil.which(_MPS_CONTROL) is None:
        raise CheckSkippedError(f"{_MPS_CONTROL} is not installed")
    site.start_node("--mps", "on")
    bare = site.run("calls")
    result = site.run_tenant(["--offline", "--measure", "never"], "calls")
    _require(result["codes"] == bare["codes"], "calls of a client of MPS gave other result codes")
    return "a tenant under MPS gets the same result codes as without", {"codes": len(result["codes"])}


def _pytorch(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    return _python_package(site, "torch", "PyTorch", _TORCH)


def _nccl(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    return _python_package(site, "torch", "PyTorch, through which NCCL is used,", _NCCL)


def _python_package(site: SelftestSite, module: str, name: str, code: str) -> tuple[str, Mapping[str, Any]]:
    """Run code that uses an optional package with and without the hook, and compare its results."""
    if importlib.util.find_spec(module) is None:
        raise CheckSkippedError(f"{name} is not installed")
    bare = site.run_python(code)
    if "skipped" in bare:
        raise CheckSkippedError(str(bare["skipped"]))
    hooked, records = site.run_hooked("shim", python=code)
    _require(hooked == bare, f"{name} gave another result with the hook: {hooked} instead of {bare}")
    launches = sum(timing.launches for record in records for timing in record.profile.timings)
    _require(launches > 0, f"the hook saw no launch of {name}")
    unknown = sorted({unknown for record in records for unknown in record.unknown_names})
    return f"{launches} launches were counted; the results are the same with and without the hook", {
        **hooked,
        "unknown": unknown,
    }


def _costs(site: SelftestSite) -> tuple[str, Mapping[str, Any]]:
    result = site.run("costs")
    text = ", ".join(f"{name.removesuffix('_ns').replace('_', ' ')} {value} ns" for name, value in result.items())
    return text, result


CHECKS: Final[tuple[Check, ...]] = (
    Check("equivalence", "programs get the same results with and without the hook", _equivalence),
    Check("counting", "the hook counts, names and times every launch", _counting),
    Check("quota", "every way to allocate device memory respects the quota", _quota),
    Check("processes", "all processes of a tenant are counted", _processes),
    Check("gate", "launches of an offline tenant wait and can be paused", _gate),
    Check("mps", "tenants run as clients of MPS", _mps),
    Check("pytorch", "PyTorch runs with the hook", _pytorch),
    Check("nccl", "a collective of NCCL runs with the hook", _nccl),
    Check("costs", "durations of driver calls on this device", _costs),
)
"""Every check, in the order in which they run."""
