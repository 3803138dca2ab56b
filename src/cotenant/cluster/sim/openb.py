"""Reader of the Alibaba GPU cluster trace of 2023 (6,212 GPUs): nodes, online services and best-effort jobs.

Source: alibaba/clusterdata, cluster-trace-gpu-v2023, in the tables of hkust-adsl's Kubernetes scheduler simulator
(Apache-2.0). Pods of class LS (latency-sensitive) become online services, BE (best-effort) become offline jobs; other
pods and pods without a GPU are omitted. The trace does not contain the load of services: their part of a GPU is used as
the peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cotenant.cluster.sim.table import (
    TraceJob,
    TraceNode,
    UniqueNames,
    checked_job,
    checked_node,
    in_order,
    seconds,
    unpacked,
)
from cotenant.errors import ConfigError
from cotenant.units.table_row import REMEDY, table_rows, whole

_PODS: Final = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
_NODES: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_WHOLE_MILLI: Final = 1000
_PPM_PER_MILLI: Final = 1000
_GIB: Final = 1 << 30
_MEMORY_GIB: Final = {"T4": 16, "P100": 16, "V100M16": 16, "V100M32": 32, "A10": 24, "G2": 24, "G3": 80}
"""From data sheets; the names of G2 and G3 are hidden in the trace, so their memory is a guess from the node type."""


class OpenbService(msgspec.Struct, frozen=True):
    """A pod that serves: the GPU types it may use, and its part of each of its GPUs."""

    name: str
    gpus: int
    milli: int
    types: tuple[str, ...]


def read_openb_nodes(content: bytes, where: str) -> list[TraceNode]:
    """Return the nodes that have GPUs."""
    nodes = []
    unique_names = UniqueNames("node")
    for location, (name, _, _, gpus, model) in table_rows(unpacked(content, where), _NODES, where):
        count = whole(gpus, "gpu", location, least=0)
        if not count:
            continue
        if model not in _MEMORY_GIB:
            raise ConfigError("model", model, f"should be one of {', '.join(_MEMORY_GIB)}; {REMEDY}", where=location)
        unique_names.add(name, location)
        nodes.append(checked_node(TraceNode(name, model, count, _MEMORY_GIB[model] * _GIB), location))
    return nodes


def read_openb_pods(content: bytes, where: str) -> tuple[list[OpenbService], list[TraceJob]]:
    """Return services and jobs.

    The work of a job is the time from scheduling to deletion; jobs of no length are omitted.
    """
    services = []
    jobs = []
    unique_names = UniqueNames("pod")
    for location, cells in table_rows(unpacked(content, where), _PODS, where):
        name, _, _, gpus, milli, spec, qos, _, created, deleted, scheduled = cells
        count = whole(gpus, "num_gpu", location, least=0, most=64)
        if not count or qos not in {"LS", "BE"}:
            continue
        unique_names.add(name, location)
        begin_ns, end_ns = seconds(created, "creation_time", location), seconds(deleted, "deletion_time", location)
        types = tuple(dict.fromkeys(spec.split("|"))) if spec else ()
        part = whole(milli, "gpu_milli", location, least=0, most=_WHOLE_MILLI)
        if qos == "LS":
            services.append(OpenbService(name, count, part, types))
            continue
        started_ns = seconds(scheduled, "scheduled_time", location) if scheduled else begin_ns
        if end_ns > started_ns:
            job = TraceJob(name, "best-effort", begin_ns, end_ns - started_ns, count, types=types)
            jobs.append(checked_job(job, location))
    return services, in_order(jobs)


def with_services(nodes: Sequence[TraceNode], services: Iterable[OpenbService]) -> tuple[list[TraceNode], int]:
    """Place the services of the trace on the nodes, first fit; return the nodes and the number of unplaced services.

    All services stay for the whole simulation. Parts of one GPU add up; a service of several GPUs has whole GPUs of
    one node.
    """
    used_by_node = [[0] * node.gpus for node in nodes]
    unplaceable = 0
    for service in services:
        part = _WHOLE_MILLI if service.gpus > 1 else service.milli
        for node, used_milli in zip(nodes, used_by_node, strict=True):
            if service.types and node.type not in service.types:
                continue
            fitting = [index for index, milli in enumerate(used_milli) if milli + part <= _WHOLE_MILLI]
            if len(fitting) >= service.gpus:
                for index in fitting[: service.gpus]:
                    used_milli[index] += part
                break
        else:
            unplaceable += 1
    placed = [
        msgspec.structs.replace(node, peaks_ppm=tuple(milli * _PPM_PER_MILLI for milli in used_milli))
        for node, used_milli in zip(nodes, used_by_node, strict=True)
    ]
    return placed, unplaceable
