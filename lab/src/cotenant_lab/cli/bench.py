"""`cotenant-lab bench NAME`: arguments of the benches, and the function that runs each of them.

A bench exits with 0 if it ran to the end, also with missed targets, which its report lists in `met`; with 1 if a run
failed; and with 2 for bad input.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from cotenant.cli.command import add_command, need_packages, output, print_json, print_line
from cotenant.cli.flags import overlay
from cotenant.errors import ConfigError
from cotenant.node.config.file import Config

_PLAIN: Final = ("loop", "device", "hook", "gate", "slice")
_OWN_FLAGS: Final = {
    "fill": ("data", "quick", "sweep_bound", "gate", "bound", "delay", "only", "reuse"),
    "cold": ("quick",),
    "collective": ("quick",),
    "faults": ("only",),
    "attack": ("attack", "mode"),
    "goodput": ("quick", "only", "runtime", "slo_times"),
    "memory": ("quick",),
    "limit": ("quick",),
    "server": ("quick",),
    "soak": ("quick",),
    "cluster": ("quick", "gpus"),
    "match": ("quick",),
    "kubernetes": ("quick",),
    "web": ("quick",),
}
"""Flags that only some of the benches accept."""


def add_commands(commands: Any) -> None:
    bench = add_command(commands, "bench", "Measure cotenant itself.", _bench, json=True)
    about = (
        "loop: the event loop under both clocks; device: the software GPU; hook, gate: added cost of a launch; "
        "slice: cost of launching kernels in parts, and the delays that parts cause; "
        "cold: services without a profile next to training; "
        "collective: a training job with a rank on each of two GPUs, next to services; "
        "fill: pairs of measured kernel streams under each sharing mode; faults: requests lost to injected faults; "
        "attack: an online tenant while an offline tenant attacks; memory: quotas under random allocation; "
        "limit: accuracy of compute shares; server: cost of serving; "
        "soak: ten minutes of serving while models change and workers are killed; "
        "goodput: requests answered in time by policy and load; cluster: simulation of one day of 20,000 GPUs; "
        "match: matching of jobs to GPUs; "
        "kubernetes: the placement controller with a real API server; "
        "web: what the web console costs a node, and how soon its page shows the tenants"
    )
    bench.add_argument("name", choices=[*_PLAIN, *_OWN_FLAGS], help=about)
    bench.add_argument(
        "--rounds",
        type=int,
        default=None,
        help="interleaved repetitions (default 5; cold: 1; match: 3; fill, server, goodput: 3, quick: 1; "
        "faults: 20 per kind)",
    )
    data = "fill: directory of the measurements (default $COTENANT_DATA)"
    bench.add_argument("--data", default=None, metavar="DIR", help=data)
    bench.add_argument(
        "--quick",
        action="store_true",
        default=None,
        help="cold: 4 s of simulated time, nothing live; collective: 2 s of simulated time; "
        "fill: one pair of each family, about a minute; memory: 2,400 operations; limit: 2 s per case; "
        "server: one round; soak: 20 s; goodput: small models, seconds; cluster: hundreds of GPUs; "
        "match: up to 1,000 jobs; "
        "kubernetes: up to 10 nodes; web: 4 tenants",
    )
    sweep = "fill: also measure a curve over the bound on outstanding offline time"
    bench.add_argument("--sweep-bound", action="store_true", default=None, help=sweep)
    for flag, values in (("gate", "open, strict or fill"), ("bound", "such as 500us"), ("delay", "such as 3%%")):
        bench.add_argument(f"--{flag}", default=None, help=f"fill: as for `cotenant node`, {values}")
    runtime = "goodput: onnx-cpu (default), or replay: four models on one software V100"
    bench.add_argument("--runtime", default=None, help=runtime)
    times = "goodput: objectives as a multiple of the p99 of single-row requests alone (default 3)"
    bench.add_argument("--slo-times", type=float, default=None, metavar="N", help=times)
    bench.add_argument(
        "--only",
        action="append",
        default=None,
        metavar="NAME",
        help="faults: this kind, goodput: this policy, fill: this part (simulated or live); may be repeated "
        "(default all)",
    )
    reuse = "fill: keep the result of every simulated pair in this directory, and read those of the same code"
    bench.add_argument("--reuse", default=None, metavar="DIR", help=reuse)
    attack = "attack: this attack; may be repeated (default all)"
    bench.add_argument("--attack", action="append", default=None, metavar="NAME", help=attack)
    mode = "attack: only this sharing mode, slices or mps (default both)"
    bench.add_argument("--mode", default=None, help=mode)
    gpus = "cluster: instead of the three sizes, a tenth of this number and this number"
    bench.add_argument("--gpus", type=int, default=None, metavar="N", help=gpus)


def _bench(options: argparse.Namespace) -> int:
    if options.rounds is not None and not 1 <= options.rounds <= 1000:
        raise ConfigError("--rounds", options.rounds, "choose 1 to 1000")
    for owner, flags in _OWN_FLAGS.items():
        for flag in () if owner == options.name else flags:
            if flag not in _OWN_FLAGS.get(options.name, ()) and (given := getattr(options, flag)) is not None:
                name = f"--{flag.replace('_', '-')}"
                raise ConfigError(name, given, f"has no meaning for `bench {options.name}`: omit it")
    if options.name in _OWN_FLAGS:
        owners = {
            "cold": _bench_cold,
            "collective": _bench_collective,
            "fill": _bench_fill,
            "faults": _bench_faults,
            "attack": _bench_attack,
            "goodput": _bench_goodput,
            "memory": _bench_memory,
            "limit": _bench_limit,
            "server": _bench_server,
            "soak": _bench_soak,
            "cluster": _bench_cluster,
            "match": _bench_match,
            "kubernetes": _bench_kubernetes,
            "web": _bench_web,
        }
        return owners[options.name](options)
    return _bench_plain(options.name, options.rounds or 5, as_json=options.json)


def _bench_cold(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.cold.bench import bench_cold
    from cotenant_lab.bench.cold.tables import show_cold

    report = bench_cold(options.rounds or 1, print_line, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_cold(output(), report)
    return 0


def _bench_collective(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.collective.bench import bench_collective
    from cotenant_lab.bench.collective.tables import show_collective

    if options.rounds is not None:
        raise ConfigError("--rounds", options.rounds, "has no meaning for `bench collective`: omit it")
    report = bench_collective(print_line, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_collective(output(), report)
    return 0


def _bench_fill(options: argparse.Namespace) -> int:
    import msgspec

    from cotenant.harness.harness import NodePolicy
    from cotenant_lab.bench.fill.bench import PARTS, ROUNDS, bench_fill
    from cotenant_lab.bench.fill.tables import show_fill
    from cotenant_lab.study.data_files import data_directory
    from cotenant_lab.study.kept_results import keep_results

    overrides = {flag: value for flag in ("gate", "bound", "delay") if (value := getattr(options, flag)) is not None}
    overlay(Config(), {("node", flag): value for flag, value in overrides.items()})  # rejects bad values before the run
    policy = msgspec.structs.replace(NodePolicy(), **overrides)
    directory = data_directory(options.data or "", os.environ)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    if unknown := [part for part in options.only or () if part not in PARTS]:
        raise ConfigError("--only", unknown[0], f"choose {' or '.join(PARTS)} for `bench fill`")
    with keep_results(Path(options.reuse) if options.reuse else None):
        report = bench_fill(
            *(directory, rounds, policy, print_line),
            quick=bool(options.quick),
            sweep=bool(options.sweep_bound),
            workers=os.cpu_count() or 1,
            parts=options.only or PARTS,
        )
    if options.json:
        print_json(report)
    else:
        show_fill(output(), report)
    return 1 if any(pair.failed for pair in report.pairs) else 0


def _bench_plain(name: str, rounds: int, *, as_json: bool) -> int:
    from cotenant.cli.render.tables import show_metrics
    from cotenant_lab.bench.device import bench_device
    from cotenant_lab.bench.gate import bench_gate
    from cotenant_lab.bench.hook import bench_hook
    from cotenant_lab.bench.loop import bench_loop
    from cotenant_lab.bench.slice.bench import bench_slice

    benches = {
        "loop": bench_loop,
        "device": bench_device,
        "hook": bench_hook,
        "gate": bench_gate,
        "slice": bench_slice,
    }
    metrics = benches[name](rounds, print_line)
    if not as_json:
        show_metrics(output(), metrics)
    else:
        print_json(metrics)
    return 0


def _bench_faults(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.faults.bench import TIMES, bench_faults
    from cotenant_lab.bench.faults.kinds import KINDS
    from cotenant_lab.bench.faults.tables import show_faults

    names = [kind.name for kind in KINDS]
    for name in options.only or ():
        if name not in names:
            raise ConfigError("--only", name, f"choose from {', '.join(names)}")
    report = bench_faults(options.rounds or TIMES, print_line, only=options.only or ())
    if options.json:
        print_json(report)
    else:
        show_faults(output(), report)
    return 0


def _bench_attack(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.attack.attacks import ATTACKS
    from cotenant_lab.bench.attack.bench import MODES, ROUNDS, bench_attack
    from cotenant_lab.bench.attack.tables import show_attack

    names = [attack.name for attack in ATTACKS]
    for name in options.attack or ():
        if name not in names:
            raise ConfigError("--attack", name, f"choose from {', '.join(names)}")
    if options.mode not in (None, *MODES):
        raise ConfigError("--mode", options.mode, f"choose from {', '.join(MODES)}")
    modes = MODES if options.mode is None else (options.mode,)
    report = bench_attack(options.rounds or ROUNDS, print_line, only=options.attack or (), modes=modes)
    if options.json:
        print_json(report)
    else:
        show_attack(output(), report)
    return 0


def _bench_memory(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.memory import bench_memory, show_memory

    report = bench_memory(options.rounds or 5, print_line, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_memory(output(), report)
    return 1 if report.failed else 0


def _bench_limit(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.limit.bench import bench_limit
    from cotenant_lab.bench.limit.tables import show_limit

    if options.rounds is not None:
        raise ConfigError("--rounds", options.rounds, "has no meaning for `bench limit`: omit it")
    report = bench_limit(print_line, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_limit(output(), report)
    return 0


def _bench_cluster(options: argparse.Namespace) -> int:
    from cotenant.cli.simulate import show_progress
    from cotenant_lab.bench.cluster import SMALLEST, bench_cluster, show_cluster_bench

    gpus = options.gpus or 0
    if options.gpus is not None and gpus < SMALLEST:
        raise ConfigError("--gpus", gpus, f"must be at least {SMALLEST}")
    if options.rounds is not None:
        raise ConfigError("--rounds", options.rounds, "has no meaning for `bench cluster`: omit it")
    with show_progress(Console(stderr=True), "time of the cluster") as progress:
        report = bench_cluster(print_line, progress, quick=bool(options.quick), gpus=gpus)
    if options.json:
        print_json(report)
    else:
        show_cluster_bench(output(), report)
    return 0


def _bench_kubernetes(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.kubernetes import bench_kubernetes, show_kubernetes_bench

    if options.rounds is not None:
        raise ConfigError("--rounds", options.rounds, "has no meaning for `bench kubernetes`: omit it")
    report = bench_kubernetes(print_line, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_kubernetes_bench(output(), report)
    return 0


def _bench_web(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.web import bench_web, show_web

    report = bench_web(options.rounds or (1 if options.quick else 5), print_line, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_web(output(), report)
    return 0


def _bench_server(options: argparse.Namespace) -> int:
    packages = ("google.protobuf", "onnxruntime", "onnx", "fastapi", "uvicorn", "grpc", "uvloop")
    need_packages("bench server", "pip install it; the bench compares with servers of others", *packages)
    from cotenant_lab.bench.server.bench import bench_server, show_server

    report = bench_server(options.rounds or (1 if options.quick else 3), print_line, quick=bool(options.quick))
    if options.json:
        print_json(report)
    else:
        show_server(output(), report)
    return 0


def _bench_soak(options: argparse.Namespace) -> int:
    need_packages("bench soak", "pip install cotenant-lab", "google.protobuf", "onnxruntime")
    from cotenant_lab.bench.soak import FULL_NS, QUICK_NS, bench_soak, show_soak

    if options.rounds is not None:
        raise ConfigError("--rounds", options.rounds, "has no meaning for `bench soak`: omit it")
    report = bench_soak(QUICK_NS if options.quick else FULL_NS, print_line)
    if options.json:
        print_json(report)
    else:
        show_soak(output(), report)
    return 0


def _bench_goodput(options: argparse.Namespace) -> int:
    import msgspec

    packages = ("google.protobuf", "onnxruntime", "onnx", "fastapi", "uvicorn", "uvloop")
    need_packages("bench goodput", "pip install cotenant-lab", *packages)
    from cotenant_lab.bench.goodput.bench import FULL, QUICK, bench_goodput, live_policies
    from cotenant_lab.bench.goodput.tables import show_goodput
    from cotenant_lab.serving.modes import ADMITTED

    policies = live_policies()
    for name in options.only or ():
        if name.removesuffix(ADMITTED) not in policies:
            raise ConfigError("--only", name, f"choose from {', '.join(policies)}, with or without {ADMITTED!r}")
    runtime = options.runtime or "onnx-cpu"
    if runtime not in FULL:
        raise ConfigError("--runtime", runtime, f"choose from {', '.join(FULL)}")
    settings = QUICK if options.quick else FULL[runtime]
    if options.slo_times is not None:
        if not 1 <= options.slo_times <= 1000:
            raise ConfigError("--slo-times", options.slo_times, "choose 1 to 1000")
        settings = msgspec.structs.replace(settings, slo_times=options.slo_times)
    rounds = options.rounds or settings.rounds
    report = bench_goodput(runtime, rounds, print_line, settings=settings, policies=options.only or ())
    if options.json:
        print_json(report)
    else:
        show_goodput(output(), report)
    return 0


def _bench_match(options: argparse.Namespace) -> int:
    from cotenant_lab.bench.match.bench import QUICK_SIZES, SIZES, bench_match
    from cotenant_lab.bench.match.tables import show_match

    report = bench_match(options.rounds or 3, print_line, sizes=QUICK_SIZES if options.quick else SIZES)
    if options.json:
        print_json(report)
    else:
        show_match(output(), report)
    return 0
