"""What of cotenant itself can be measured?"""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from rich.console import Console

from cotenant.cli.command import add_command, print_json, say
from cotenant.errors import ConfigError
from cotenant.format.config import Config
from cotenant.format.flags import overlay

_PLAIN: Final = ("loop", "device", "hook", "gate")
_OWN_FLAGS: Final = {
    "fill": ("data", "quick", "sweep_bound", "gate", "bound", "delay"),
    "faults": ("only",),
    "goodput": ("quick", "only", "runtime", "slo_times"),
    "memory": ("quick",),
    "limit": ("quick",),
    "server": ("quick",),
    "cluster": ("quick",),
    "match": ("quick",),
}
"""What only one of the benches knows."""


def add_commands(commands: Any) -> None:
    bench = add_command(commands, "bench", "Measure cotenant itself.", _bench, json=True)
    about = (
        "loop: the two clocks; device: software GPU; hook, gate: what they cost a launch; fill: pairs; "
        "faults: what goes wrong beside a service; memory: do quotas hold; limit: do shares; server: serving; "
        "goodput: what is answered in time, by policy and load; cluster: a day of 20,000 GPUs; match: jobs to GPUs"
    )
    bench.add_argument("name", choices=[*_PLAIN, *_OWN_FLAGS], help=about)
    bench.add_argument(
        "--rounds",
        type=int,
        default=None,
        help="repetitions in turn (default 5; match: 3; fill, server, goodput: 3, quick: 1; faults: 20 of each kind)",
    )
    data = "fill: the measurements (default $COTENANT_DATA or ../shared/data)"
    bench.add_argument("--data", default=None, metavar="DIR", help=data)
    bench.add_argument(
        "--quick",
        action="store_true",
        default=None,
        help="fill: one pair of each family, about a minute; memory: 2,400 operations; limit: 2 s each; server: once; "
        "goodput: small models, seconds; cluster: hundreds of GPUs; match: up to 1,000",
    )
    sweep = "fill: also a curve over the bound on outstanding offline time"
    bench.add_argument("--sweep-bound", action="store_true", default=None, help=sweep)
    for flag, values in (("gate", "open, strict or fill"), ("bound", "like 500us"), ("delay", "like 3%%")):
        bench.add_argument(f"--{flag}", default=None, help=f"fill: as of `cotenant node`, {values}")
    runtime = "goodput: onnx-cpu (default), or replay: four models on one software V100"
    bench.add_argument("--runtime", default=None, help=runtime)
    times = "goodput: objectives, in the p99 of requests of one row alone (default 3)"
    bench.add_argument("--slo-times", type=float, default=None, metavar="N", help=times)
    bench.add_argument(
        "--only",
        action="append",
        default=None,
        metavar="NAME",
        help="faults: this kind, goodput: this policy; may be repeated (default all)",
    )


def _bench(options: argparse.Namespace) -> int:
    if options.rounds is not None and not 1 <= options.rounds <= 1000:
        raise ConfigError("--rounds", options.rounds, "choose 1 to 1000")
    for owner, flags in _OWN_FLAGS.items():
        for flag in () if owner == options.name else flags:
            if flag not in _OWN_FLAGS.get(options.name, ()) and (given := getattr(options, flag)) is not None:
                name = f"--{flag.replace('_', '-')}"
                raise ConfigError(name, given, f"means nothing to `bench {options.name}`: leave it out")
    if options.name in _OWN_FLAGS:
        owners = {
            "fill": _bench_fill,
            "faults": _bench_faults,
            "goodput": _bench_goodput,
            "memory": _bench_memory,
            "limit": _bench_limit,
            "server": _bench_server,
            "cluster": _bench_cluster,
            "match": _bench_match,
        }
        return owners[options.name](options)
    return _bench_plain(options.name, options.rounds or 5, as_json=options.json)


def _bench_fill(options: argparse.Namespace) -> int:
    import msgspec

    from cotenant.apps.lab import named_directory
    from cotenant.apps.show_fill import show_fill
    from cotenant.experiment.fill.bench import ROUNDS, bench_fill
    from cotenant.experiment.fill.stage import NodePolicy

    given = {flag: value for flag in ("gate", "bound", "delay") if (value := getattr(options, flag)) is not None}
    overlay(Config(), {("node", flag): value for flag, value in given.items()})  # refused here, not by a node
    policy = msgspec.structs.replace(NodePolicy(), **given)
    directory = named_directory(options.data or "", os.environ)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    report = bench_fill(directory, rounds, policy, say, quick=bool(options.quick), sweep=bool(options.sweep_bound))
    if options.json:
        print_json(report)
    else:
        show_fill(Console(), report)
    return 1 if any(pair.failed for pair in report.pairs) else 0


def _bench_plain(name: str, rounds: int, *, as_json: bool) -> int:
    from cotenant.apps.show import show_bench
    from cotenant.experiment.device import bench_device
    from cotenant.experiment.gate import bench_gate
    from cotenant.experiment.hook import bench_hook
    from cotenant.experiment.loop import bench_loop

    benches = {"loop": bench_loop, "device": bench_device, "hook": bench_hook, "gate": bench_gate}
    figures = benches[name](rounds, say)
    if not as_json:
        show_bench(Console(), figures)
    else:
        print_json(figures)
    return 0


def _bench_faults(options: argparse.Namespace) -> int:
    from cotenant.apps.show_faults import show_faults
    from cotenant.experiment.faults.bench import TIMES, bench_faults
    from cotenant.experiment.faults.kinds import KINDS

    known = [kind.name for kind in KINDS]
    for name in options.only or ():
        if name not in known:
            raise ConfigError("--only", name, f"choose from {', '.join(known)}")
    report = bench_faults(options.rounds or TIMES, say, only=options.only or ())
    if options.json:
        print_json(report)
    else:
        show_faults(Console(), report)
    return 0 if not report.unexcused_lost_requests and report.state_after == "healthy" else 1


def _bench_memory(options: argparse.Namespace) -> int:
    from cotenant.apps.show_memory import show_memory
    from cotenant.experiment.memory import bench_memory

    report = bench_memory(options.rounds or 5, say, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_memory(Console(), report)
    return 1 if report.bypassed_bytes or report.leaked_bytes or report.failed else 0


def _bench_limit(options: argparse.Namespace) -> int:
    from cotenant.apps.show_limit import show_limit
    from cotenant.experiment.limit import bench_limit

    if options.rounds is not None:
        raise ConfigError("--rounds", options.rounds, "means nothing to `bench limit`: leave it out")
    report = bench_limit(say, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_limit(Console(), report)
    return 0


def _bench_cluster(options: argparse.Namespace) -> int:
    from cotenant.apps.show_cluster_bench import show_cluster_bench
    from cotenant.apps.simulate_cluster import time_shown
    from cotenant.experiment.cluster_bench import bench_cluster

    if options.rounds is not None:
        raise ConfigError("--rounds", options.rounds, "means nothing to `bench cluster`: leave it out")
    with time_shown(Console(stderr=True), "time of the cluster") as progress:
        report = bench_cluster(say, progress, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_cluster_bench(Console(), report)
    return 0 if all(report.met.values()) else 1


def _bench_server(options: argparse.Namespace) -> int:
    from cotenant.apps.needs import need_packages

    others = ("google.protobuf", "onnxruntime", "onnx", "fastapi", "uvicorn", "grpc", "uvloop")
    need_packages("bench server", "pip install it; the comparison is with servers that others made", *others)
    from cotenant.apps.show_server import show_server
    from cotenant.experiment.server import bench_server

    report = bench_server(options.rounds or (1 if options.quick else 3), say, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_server(Console(), report)
    return 0


def _bench_goodput(options: argparse.Namespace) -> int:
    import msgspec

    from cotenant.apps.needs import need_packages

    others = ("google.protobuf", "onnxruntime", "onnx", "fastapi", "uvicorn", "uvloop")
    need_packages("bench goodput", "pip install 'cotenant[bench]'", *others)
    from cotenant.apps.show_goodput import show_goodput
    from cotenant.experiment.goodput.bench import FULL, QUICK, bench_goodput, live_policies
    from cotenant.experiment.serve.ways import ADMITTED

    known = live_policies()
    for name in options.only or ():
        if name.removesuffix(ADMITTED) not in known:
            raise ConfigError("--only", name, f"choose from {', '.join(known)}, with or without {ADMITTED!r}")
    runtime = options.runtime or "onnx-cpu"
    if runtime not in FULL:
        raise ConfigError("--runtime", runtime, f"choose from {', '.join(FULL)}")
    course = QUICK if options.quick else FULL[runtime]
    if options.slo_times is not None:
        if not 1 <= options.slo_times <= 1000:
            raise ConfigError("--slo-times", options.slo_times, "choose 1 to 1000")
        course = msgspec.structs.replace(course, slo_times=options.slo_times)
    rounds = options.rounds or course.rounds
    report = bench_goodput(runtime, rounds, say, course=course, policies=options.only or ())
    if options.json:
        print_json(report)
    else:
        show_goodput(Console(), report)
    return 0


def _bench_match(options: argparse.Namespace) -> int:
    from cotenant.apps.show_match import show_match
    from cotenant.experiment.match import QUICK_SIZES, SIZES, bench_match

    report = bench_match(options.rounds or 3, say, sizes=QUICK_SIZES if options.quick else SIZES)
    if options.json:
        print_json(report)
    else:
        show_match(Console(), report)
    return 0 if all(report.met.values()) else 1
