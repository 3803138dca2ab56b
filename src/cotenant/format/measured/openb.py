"""What is Alibaba's cluster of 6,212 GPUs, and what was brought to it? Nodes, services that stay, best-effort jobs.

Source: alibaba/clusterdata, cluster-trace-gpu-v2023, as hkust-adsl's tables for its Kubernetes scheduler (Apache-2.0).
Pods of the class LS (latency-sensitive) are taken for online services, BE (best-effort) for offline jobs; others, and
pods without a GPU, are left out. How loaded a service is, the trace does not say: its part of a GPU counts as its peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.format.cluster_csv import (
    Once,
    TraceJob,
    TraceNode,
    checked_job,
    checked_node,
    in_order,
    seconds,
    unpacked,
)
from cotenant.format.measured.row import REMEDY, table_rows, whole

_PODS: Final = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
_NODES: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_WHOLE_MILLI: Final = 1000
_PPM_PER_MILLI: Final = 1000
_GIB: Final = 1 << 30
_MEMORY_GIB: Final = {"T4": 16, "P100": 16, "V100M16": 16, "V100M32": 32, "A10": 24, "G2": 24, "G3": 80}
"""By the makers' data sheets; of G2 and G3, whose names the trace hides, a guess that the kind of node suggests."""


class OpenbService(msgspec.Struct, frozen=True):
    """A pod that serves: where it may be, and what part of how many GPUs it was given."""

    name: str
    gpus: int
    milli: int
    types: tuple[str, ...]


def read_openb_nodes(content: bytes, where: str) -> list[TraceNode]:
    """Nodes with GPUs."""
    nodes = []
    once = Once("node")
    for place, (name, _, _, gpus, model) in table_rows(unpacked(content, where), _NODES, where):
        count = whole(gpus, "gpu", place, least=0)
        if not count:
            continue
        if model not in _MEMORY_GIB:
            raise ConfigError("model", model, f"should be one of {', '.join(_MEMORY_GIB)}; {REMEDY}", where=place)
        once.take(name, place)
        nodes.append(checked_node(TraceNode(name, model, count, _MEMORY_GIB[model] * _GIB), place))
    return nodes


def read_openb_pods(content: bytes, where: str) -> tuple[list[OpenbService], list[TraceJob]]:
    """Services and jobs. A job's work is the time from scheduling to deletion; those of no length are left out."""
    services = []
    jobs = []
    once = Once("pod")
    for place, cells in table_rows(unpacked(content, where), _PODS, where):
        name, _, _, gpus, milli, spec, qos, _, created, deleted, scheduled = cells
        count = whole(gpus, "num_gpu", place, least=0, most=64)
        if not count or qos not in {"LS", "BE"}:
            continue
        once.take(name, place)
        begin_ns, end_ns = seconds(created, "creation_time", place), seconds(deleted, "deletion_time", place)
        types = tuple(dict.fromkeys(spec.split("|"))) if spec else ()
        part = whole(milli, "gpu_milli", place, least=0, most=_WHOLE_MILLI)
        if qos == "LS":
            services.append(OpenbService(name, count, part, types))
            continue
        started_ns = seconds(scheduled, "scheduled_time", place) if scheduled else begin_ns
        if end_ns > started_ns:
            job = TraceJob(name, "best-effort", begin_ns, end_ns - started_ns, count, types=types)
            jobs.append(checked_job(job, place))
    return services, in_order(jobs)


def with_services(nodes: Sequence[TraceNode], services: Iterable[OpenbService]) -> tuple[list[TraceNode], int]:
    """The nodes with all services of the trace, first fit; and how many found no room.

    All of them stay: the trace is a sample, of which at most 452 GPUs' worth is there on one day. Parts of one GPU add
    up; a service of several GPUs has them whole, on one node.
    """
    used = [[0] * node.gpus for node in nodes]
    homeless = 0
    for service in services:
        part = _WHOLE_MILLI if service.gpus > 1 else service.milli
        for node, taken in zip(nodes, used, strict=True):
            if service.types and node.type not in service.types:
                continue
            room = [index for index, milli in enumerate(taken) if milli + part <= _WHOLE_MILLI]
            if len(room) >= service.gpus:
                for index in room[: service.gpus]:
                    taken[index] += part
                break
        else:
            homeless += 1
    placed = [
        msgspec.structs.replace(node, peaks_ppm=tuple(milli * _PPM_PER_MILLI for milli in taken))
        for node, taken in zip(nodes, used, strict=True)
    ]
    return placed, homeless
