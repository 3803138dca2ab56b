"""What can be replayed, simulated, measured and shown?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from cotenant.cli.command import add_command, print_json, say
from cotenant.errors import ConfigError


def add_study_commands(commands: Any) -> None:
    replay = add_command(commands, "replay", "Replay a journal: does this version decide the same?", _replay, json=True)
    replay.add_argument("file", metavar="FILE", help="a journal, as in the state directory of a node")
    replay.add_argument("--log", action="store_true", help="print every turn")
    simulate = add_command(commands, "simulate", "Run a scenario under the simulated clock.", _simulate, json=True)
    simulate.add_argument("scenario", metavar="SCENARIO.toml")
    simulate.add_argument("--seed", type=int, default=None, help="instead of the scenario's own")
    simulate.add_argument("--log", action="store_true", help="print every turn")
    simulate.add_argument("--journal", default="", metavar="FILE", help="write the journal here")
    bench = add_command(commands, "bench", "Measure cotenant itself.", _bench, json=True)
    about = "loop: the two clocks; device: the software GPU; hook: what it costs a launch"
    bench.add_argument("name", choices=["loop", "device", "hook"], help=about)
    bench.add_argument("--rounds", type=int, default=5, help="interleaved repetitions (default 5)")
    demo = add_command(commands, "demo", "The main job in front of your eyes, on this machine.", _demo, json=True)
    demo.add_argument("--replay", default="", metavar="FILE", help="examples/replay.py: also share a software GPU")
    demo.add_argument("--keep", default="", metavar="DIR", help="keep the node's directory here")


def _replay(options: argparse.Namespace) -> int:
    from cotenant.apps.replay import replay_file
    from cotenant.apps.show import show_replay

    report = replay_file(Path(options.file), print if options.log else None)
    if options.json:
        print_json(report)
    else:
        show_replay(Console(), report)
    return 0 if report.reproduced else 1


def _simulate(options: argparse.Namespace) -> int:
    from cotenant.apps.show import show_outcome
    from cotenant.apps.simulate import simulate_file

    outcome = simulate_file(Path(options.scenario), options.seed, options.journal, print if options.log else None)
    if options.json:
        print_json(outcome)
    else:
        show_outcome(Console(), outcome)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from cotenant.apps.show import show_bench
    from cotenant.experiment.device import bench_device
    from cotenant.experiment.hook import bench_hook
    from cotenant.experiment.loop import bench_loop

    if not 1 <= options.rounds <= 1000:
        raise ConfigError("--rounds", options.rounds, "choose 1 to 1000")
    figures = {"loop": bench_loop, "device": bench_device, "hook": bench_hook}[options.name](options.rounds, say)
    if not options.json:
        show_bench(Console(), figures)
    else:
        print_json(figures)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from cotenant.apps.demo import run_demo

    return run_demo(Console(), options.keep, options.replay, as_json=options.json)
