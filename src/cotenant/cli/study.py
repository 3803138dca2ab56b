"""What can be replayed, simulated, measured and shown?"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console

from cotenant.cli.command import add_command, print_json, say
from cotenant.errors import ConfigError

_PAPER_WIDTH: Final = 160
Found = TypeVar("Found")


def add_commands(commands: Any) -> None:
    replay = add_command(commands, "replay", "Replay a journal: does this version decide the same?", _replay, json=True)
    replay.add_argument("file", metavar="FILE", help="a journal, as in the state directory of a node or a cluster")
    replay.add_argument("--log", action="store_true", help="print every turn")
    replay.add_argument("--snapshot", default="", metavar="FILE", help="a cluster's: write how it stands at the end")
    place = add_command(commands, "place", "One round of a cluster: who with whom, and why not.", _place, json=True)
    place.add_argument("snapshot", metavar="SNAPSHOT.json", help="a cluster at one instant (docs/cluster.md)")
    place.add_argument("--dry-run", action="store_true", required=True, help="only tell: nothing else can be done here")
    place.add_argument("--place", default="", metavar="POLICY", help="another way to place than the snapshot names")
    simulate = add_command(commands, "simulate", "Run a scenario under the simulated clock.", _simulate, json=True)
    simulate.add_argument("scenario", metavar="SCENARIO.toml")
    simulate.add_argument("--seed", type=int, default=None, help="instead of the scenario's own")
    simulate.add_argument("--log", action="store_true", help="print every turn")
    simulate.add_argument("--journal", default="", metavar="FILE", help="of a node: write the journal here")
    simulate.add_argument("--report", default="", metavar="FILE", help="of a cluster: write a page with plots here")
    lab = add_command(commands, "lab", "Judge cotenant's models by measurements of real GPUs.", _lab, json=True)
    about = (
        "device: the software GPU's physics; timelines: what the hook measures of real ones, replayed; "
        "fikit: gap filling over many pairs of programs; muxflow-node: what sharing does to one node; "
        "predictor-node: latencies, slowdowns and loads foretold; "
        "predictor: speeds of a cluster's jobs foretold; placement-node: ways to choose a GPU; "
        "arkgpu: objectives kept and goodput in every way to share; "
        "dstack: many models served from one GPU in every way to share it; "
        "muri: a real cluster's past replayed under six policies; muxflow: a cluster before and after sharing; "
        "all: fikit, arkgpu, dstack and muxflow beside what their papers claim"
    )
    lab.add_argument("name", choices=list(_LABS), help=about)
    lab.add_argument(
        "--data", default="", metavar="DIR", help="the measurements (default $COTENANT_DATA or ../shared/data)"
    )
    lab.add_argument(
        "--plots",
        default=None,
        metavar="DIR",
        help="not timelines, placement-node, muri, all: draw SVG files and an index.html here",
    )
    about = (
        "device: which half is held out; fikit, muxflow-node: hosts; predictor-node: days made up; "
        "predictor: programs made up; "
        "placement-node: mixes; arkgpu: hosts and arrivals; dstack: arrivals and noise; muxflow: loads (default 0)"
    )
    lab.add_argument("--seed", type=int, default=None, help=about)
    about = (
        "fikit, muxflow-node, predictor-node, predictor, placement-node, arkgpu, dstack, muri, muxflow: "
        "fewer and shorter cases"
    )
    lab.add_argument("--quick", action="store_true", default=None, help=about)
    about = "arkgpu: every mix under every load, four times as many cases"
    lab.add_argument("--full", action="store_true", default=None, help=about)
    about = "arkgpu: without the part with real processes"
    lab.add_argument("--no-live", action="store_true", default=None, help=about)
    lab.add_argument("--live", default=None, metavar="FILE", help="fikit: what `bench fill --json` printed, to compare")
    lab.add_argument(
        "--replay", default=None, metavar="FILE", help="timelines: replays them (default examples/replay.py)"
    )
    about = "predictor: write what was fitted to this file, like the package's own policy/predict/speed_parameters.json"
    lab.add_argument("--parameters", default=None, metavar="FILE", help=about)
    about = "all: take LAB.json from here where it is, and keep there what is run"
    lab.add_argument("--reuse", default=None, metavar="DIR", help=about)
    lab.add_argument("--report", default=None, metavar="FILE", help="all: write it as an HTML page, too")
    demo = add_command(commands, "demo", "The main job in front of your eyes, on this machine.", _demo, json=True)
    about = "share: a service and a training job on one GPU (default); node: kills, a restart, a replay"
    demo.add_argument("--story", choices=["share", "node"], default="share", help=about)
    demo.add_argument("--report", default="", metavar="FILE", help="share: the page (default demo-report.html)")
    demo.add_argument("--requests", type=int, default=None, help="share: to the service in each act (default 480)")
    demo.add_argument("--keep", default="", metavar="DIR", help="keep the node's directory here")


def _replay(options: argparse.Namespace) -> int:
    from cotenant.apps.replay import replay_file
    from cotenant.apps.show import show_replay

    snapshot = Path(options.snapshot) if options.snapshot else None
    report = replay_file(Path(options.file), print if options.log else None, snapshot)
    if options.json:
        print_json(report)
    else:
        show_replay(Console(), report)
    return 0 if report.reproduced else 1


def _place(options: argparse.Namespace) -> int:
    from cotenant.apps.place import place_on_snapshot
    from cotenant.apps.show_place import show_place

    report = place_on_snapshot(Path(options.snapshot), options.place)
    if options.json:
        print_json(report)
    else:
        show_place(Console(), report)
    return 0


def _simulate(options: argparse.Namespace) -> int:
    from cotenant.apps.show import show_outcome
    from cotenant.apps.simulate import read_scenario, simulate_file
    from cotenant.format.scenario_cluster import is_of_cluster
    from cotenant.format.scenario_kernels import is_of_kernels

    text = read_scenario(Path(options.scenario))
    if is_of_cluster(text):
        return _simulate_cluster(options)
    if options.report:
        raise ConfigError("--report", options.report, "only a scenario of a cluster has a page: leave it out")
    if is_of_kernels(text):
        return _simulate_kernels(options)
    outcome = simulate_file(Path(options.scenario), options.seed, options.journal, print if options.log else None)
    if options.json:
        print_json(outcome)
    else:
        show_outcome(Console(), outcome)
    return 0


def _simulate_cluster(options: argparse.Namespace) -> int:
    from cotenant.apps.show_cluster_outcome import show_cluster_outcome
    from cotenant.apps.simulate_cluster import simulate_cluster_file

    if options.journal:
        remedy = "a scenario of a cluster keeps its journal to itself: leave it out"
        raise ConfigError("--journal", options.journal, remedy)
    log = (lambda line: print(line, end="")) if options.log else None
    outcome = simulate_cluster_file(Path(options.scenario), options.seed, options.report, Console(stderr=True), log)
    if options.json:
        print_json(outcome)
    else:
        show_cluster_outcome(paper(), outcome)
    return 1 if outcome.problems else 0


def _simulate_kernels(options: argparse.Namespace) -> int:
    from cotenant.apps.show_kernels import show_kernels
    from cotenant.apps.simulate_kernels import simulate_kernels_file

    if options.journal or options.log:
        flag = "--journal" if options.journal else "--log"
        raise ConfigError(flag, options.journal or True, "a scenario of kernels has no turns of a node: leave it out")
    outcome = simulate_kernels_file(Path(options.scenario), options.seed, say)
    if options.json:
        print_json(outcome)
    else:
        show_kernels(Console(), outcome)
    return 0


def _lab(options: argparse.Namespace) -> int:
    run, refused = _LABS[options.name]
    for flag in (*refused, *(flag for flag, lab in _OWN_FLAGS.items() if lab != options.name)):
        if (given := getattr(options, flag.replace("-", "_"))) is not None:
            raise ConfigError(f"--{flag}", given, f"means nothing to `lab {options.name}`: leave it out")
    return run(options)


def _lab_muxflow(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_muxflow import run_muxflow
    from cotenant.apps.lab_muxflow_plots import plotter
    from cotenant.apps.show_muxflow import show_muxflow

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    directory = named_directory(options.data, os.environ)
    report = run_muxflow(directory, seed, Console(stderr=True), say, quick=bool(options.quick))
    if draw is not None:
        draw(report)
    _tell(options, report, show_muxflow)
    return 0 if report.met and all(report.met.values()) else 1


def _lab_predictor(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import data_directory
    from cotenant.apps.lab_predictor import run_predictor
    from cotenant.apps.lab_predictor_plots import plotter
    from cotenant.apps.show_predictor import show_predictor

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    directory = data_directory(options.data, os.environ)
    report, evidence = run_predictor(directory, seed, Console(stderr=True), say, quick=bool(options.quick))
    if draw is not None:
        draw(report, evidence)
    _tell(options, report, show_predictor)
    return 0 if all(report.met.values()) else 1


def _lab_speed(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import data_directory
    from cotenant.apps.lab_speed import keep_parameters, parameters_file, run_speed
    from cotenant.apps.lab_speed_plots import plotter
    from cotenant.apps.show_speed import show_speed

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    directory = data_directory(options.data, os.environ)
    kept = parameters_file(options.parameters) if options.parameters else None
    report, evidence, parameters = run_speed(directory, seed, Console(stderr=True), say, quick=bool(options.quick))
    if draw is not None:
        draw(report, evidence)
    if kept is not None:
        keep_parameters(parameters, kept)
        say(f"what was fitted is in {options.parameters}")
    _tell(options, report, show_speed)
    return 0 if all(report.met.values()) else 1


def _lab_placement(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_placement import run_placement, show_placement

    directory = named_directory(options.data, os.environ)
    report = run_placement(directory, _seed(options), Console(stderr=True), say, quick=bool(options.quick))
    _tell(options, report, show_placement)
    return 0 if all(report.met.values()) else 1


def _lab_arkgpu(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_arkgpu import run_arkgpu
    from cotenant.apps.lab_arkgpu_plots import plotter
    from cotenant.apps.show_arkgpu import show_arkgpu

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    directory = named_directory(options.data, os.environ)
    how = {"quick": bool(options.quick), "live": not options.no_live, "full": bool(options.full)}
    report, evidence = run_arkgpu(directory, seed, Console(stderr=True), say, **how)
    if draw is not None:
        draw(report, evidence)
    _tell(options, report, show_arkgpu)
    return 0 if all(report.met.values()) else 1


def _lab_dstack(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_dstack import run_dstack
    from cotenant.apps.lab_dstack_plots import plotter
    from cotenant.apps.show_dstack import show_dstack

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    directory = named_directory(options.data, os.environ)
    report = run_dstack(directory, seed, Console(stderr=True), say, quick=bool(options.quick))
    if draw is not None:
        draw(report)
    _tell(options, report, show_dstack)
    return 0 if all(report.met.values()) else 1


def _lab_fikit(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_fikit import run_fikit
    from cotenant.apps.show_fikit import show_fikit

    draw = None
    if options.plots:
        from cotenant.apps.lab_fikit_plots import plotter

        draw = plotter(Path(options.plots))
    directory = named_directory(options.data, os.environ)
    report = run_fikit(
        directory, options.live or "", _seed(options), Console(stderr=True), say, quick=bool(options.quick)
    )
    if draw is not None:
        draw(report)
    _tell(options, report, show_fikit)
    return 0 if all(report.met.values()) else 1


def _tell(options: argparse.Namespace, report: Found, show: Callable[[Console, Found], None]) -> None:
    """What a lab found."""
    if options.plots:
        say(f"plots are in {Path(options.plots) / 'index.html'}")
    if options.json:
        print_json(report)
    else:
        show(paper(), report)


def paper() -> Console:
    """Where findings are printed; in a file or a pipe wide enough that no table loses columns."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PAPER_WIDTH)


def _seed(options: argparse.Namespace) -> int:
    seed = 0 if options.seed is None else int(options.seed)
    if not 0 <= seed < 2**32:
        raise ConfigError("--seed", seed, "choose 0 to 4294967295")
    return seed


def _lab_timelines(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_timelines import run_timelines, show_timelines, timelines_of

    directory = named_directory(options.data, os.environ) / "kernel_timelines"
    timelines = timelines_of(directory, options.data)
    report = run_timelines(timelines, Path(options.replay or "examples/replay.py"), Console(stderr=True), say)
    _tell(options, report, show_timelines)
    return 0 if report.met else 1


def _lab_device(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import data_directory, run_lab
    from cotenant.apps.show_lab import show_lab

    seed = _seed(options)
    directory = data_directory(options.data, os.environ)
    draw = None
    if options.plots:
        from cotenant.apps.lab_plots import plotter

        draw = plotter(Path(options.plots))
    report, evidence = run_lab(directory, seed, Console(stderr=True), say)
    if draw is not None:
        draw(report, evidence)
    _tell(options, report, show_lab)
    return 0 if all(check.met is not False for check in report.checks) else 1


def _lab_muri(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_muri import run_muri, show_muri

    directory = named_directory(options.data, os.environ)
    report = run_muri(directory, Console(stderr=True), say, quick=bool(options.quick))
    _tell(options, report, show_muri)
    return 0 if all(report.met.values()) else 1


def _lab_muxflow_cluster(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_muxflow_cluster import run_muxflow_cluster, show_muxflow_cluster
    from cotenant.apps.lab_muxflow_cluster_plots import plotter

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    directory = named_directory(options.data, os.environ)
    report = run_muxflow_cluster(directory, seed, Console(stderr=True), say, quick=bool(options.quick))
    if draw is not None:
        draw(report)
    _tell(options, report, show_muxflow_cluster)
    return 0 if all(report.met.values()) else 1


def _lab_all(options: argparse.Namespace) -> int:
    from cotenant.apps.lab import named_directory
    from cotenant.apps.lab_all import run_all, show_all, write_page

    directory = named_directory(options.data, os.environ)
    seed, quick = _seed(options), bool(options.quick)
    report = run_all(directory, options.reuse or "", seed, Console(stderr=True), say, quick=quick)
    if options.report:
        write_page(Path(options.report), report)
    _tell(options, report, show_all)
    return 0 if all(met for told in report.labs for met in told.met.values()) else 1


_LABS: Final[dict[str, tuple[Callable[[argparse.Namespace], int], tuple[str, ...]]]] = {
    "device": (_lab_device, ("replay", "quick", "live", "no-live")),
    "timelines": (_lab_timelines, ("plots", "seed", "quick", "live", "no-live")),
    "fikit": (_lab_fikit, ("replay", "no-live")),
    "muxflow-node": (_lab_muxflow, ("replay", "live", "no-live")),
    "predictor-node": (_lab_predictor, ("replay", "live", "no-live")),
    "predictor": (_lab_speed, ("replay", "live", "no-live")),
    "placement-node": (_lab_placement, ("plots", "replay", "live", "no-live")),
    "arkgpu": (_lab_arkgpu, ("replay", "live")),
    "dstack": (_lab_dstack, ("replay", "live", "no-live")),
    "muxflow": (_lab_muxflow_cluster, ("replay", "live", "no-live")),
    "all": (_lab_all, ("plots", "replay", "live", "no-live")),
    "muri": (_lab_muri, ("plots", "seed", "replay", "live", "no-live")),
}
"""By name: what runs it, and the flags that mean nothing to it."""
_OWN_FLAGS: Final = {"reuse": "all", "report": "all", "parameters": "predictor", "full": "arkgpu"}
"""Those that one lab alone knows."""


def _demo(options: argparse.Namespace) -> int:
    from cotenant.apps.demo import run_demo

    return run_demo(Console(), options.story, options.keep, options.report, options.requests, as_json=options.json)
