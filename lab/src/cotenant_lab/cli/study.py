"""`cotenant-lab study NAME`: arguments of the studies, and the function that runs each of them.

A study exits with 0 if it ran to the end, also with missed targets, which its report lists in `met`; with 1 if a run
failed; and with 2 for bad input.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console

from cotenant.cli.command import add_command, output, print_json, print_line
from cotenant.errors import ConfigError
from cotenant_lab.study.data_files import data_directory

Report = TypeVar("Report")
FRESH_SEED: Final = 90_263
"""Default seed of studies that fit nothing: one with which no constant was chosen."""
_FIT_SEED: Final = 0
_FITTING: Final = ("device", "predictor")
"""Studies that fit parameters, by default with the seed of those in the package."""


def add_commands(commands: Any) -> None:
    study = add_command(
        commands, "study", "Compare cotenant with published measurements and papers.", _study, json=True
    )
    about = (
        "device: the software GPU's physics; timelines: kernel times that the hook measures of replayed timelines; "
        "fikit: gap filling over many pairs of programs; muxflow-node: sharing on one node; "
        "predictor: predicted slowdowns, speeds, latencies and loads of node and cluster; "
        "placement-node: policies that choose a GPU; "
        "arkgpu: objectives kept and goodput in every sharing mode; "
        "baselines: whether a baseline reproduces its own paper; "
        "dstack: many models served from one GPU in every sharing mode; "
        "models: latencies estimated from the operators of models; "
        "muri: a replay of a real cluster under six policies; muxflow: a cluster before and after sharing; "
        "all: results of fikit, arkgpu, dstack and muxflow next to the claims of their papers, and of baselines"
    )
    study.add_argument("name", choices=list(_STUDIES), help=about)
    study.add_argument(
        "--data", default="", metavar="DIR", help="directory of the measurements (default $COTENANT_DATA)"
    )
    study.add_argument(
        "--plots",
        default=None,
        metavar="DIR",
        help="not timelines, baselines, placement-node, muri, all: write SVG files and an index.html here",
    )
    about = (
        "device: which half is held out; fikit, muxflow-node: host jitter; "
        "predictor: synthetic load and programs; placement-node: mixes; arkgpu: host jitter and arrivals; "
        "baselines: host jitter; dstack: arrivals and noise; muxflow: loads (default 90263; device, predictor: 0)"
    )
    study.add_argument("--seed", type=int, default=None, help=about)
    about = "fikit, muxflow-node, predictor, placement-node, arkgpu, baselines, dstack, muri, muxflow, all: fewer cases"
    study.add_argument("--quick", action="store_true", default=None, help=about)
    about = "arkgpu: every mix under every load, four times as many cases"
    study.add_argument("--full", action="store_true", default=None, help=about)
    about = "arkgpu: without the part with real processes"
    study.add_argument("--no-live", action="store_true", default=None, help=about)
    study.add_argument(
        "--live", default=None, metavar="FILE", help="fikit: output of `cotenant-lab bench fill --json`, to compare"
    )
    study.add_argument(
        "--replay", default=None, metavar="FILE", help="timelines: the replay program (default examples/replay.py)"
    )
    about = (
        "predictor: fit the parameters, judge them instead of those of the package, and write them to this file, "
        "in the format of predict/speed_parameters.json"
    )
    study.add_argument("--parameters", default=None, metavar="FILE", help=about)
    about = "models: fit the parameters of the estimate again, and report with them"
    study.add_argument("--fit", action="store_true", default=None, help=about)
    about = "all: read STUDY.json from here where it exists, and write there what is run"
    study.add_argument("--reuse", default=None, metavar="DIR", help=about)
    study.add_argument("--report", default=None, metavar="FILE", help="all: also write an HTML page")


def _study(options: argparse.Namespace) -> int:
    run, refused = _STUDIES[options.name]
    for flag in (*refused, *(flag for flag, study in _OWN_FLAGS.items() if study != options.name)):
        if (value := getattr(options, flag.replace("-", "_"))) is not None:
            raise ConfigError(f"--{flag}", value, f"has no meaning for `study {options.name}`: omit it")
    run(options)
    return 0


def _print_report(options: argparse.Namespace, report: Report, show: Callable[[Console, Report], None]) -> None:
    """Print the report of a study as tables or as JSON."""
    if options.plots:
        print_line(f"plots are in {Path(options.plots) / 'index.html'}")
    if options.json:
        print_json(report)
    else:
        show(output(), report)


def _seed(options: argparse.Namespace) -> int:
    seed = (_FIT_SEED if options.name in _FITTING else FRESH_SEED) if options.seed is None else int(options.seed)
    if not 0 <= seed < 2**32:
        raise ConfigError("--seed", seed, "choose 0 to 4294967295")
    return seed


def _directory(options: argparse.Namespace) -> Path:
    return data_directory(options.data, os.environ)


def _study_muxflow_node(options: argparse.Namespace) -> None:
    from cotenant_lab.study.muxflow_node.plots import plotter
    from cotenant_lab.study.muxflow_node.report import run_muxflow_node
    from cotenant_lab.study.muxflow_node.tables import show_muxflow_node

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    report = run_muxflow_node(_directory(options), seed, Console(stderr=True), print_line, quick=bool(options.quick))
    if draw is not None:
        draw(report)
    _print_report(options, report, show_muxflow_node)


def _study_predictor(options: argparse.Namespace) -> None:
    from cotenant_lab.study.predictor.plots import plotter
    from cotenant_lab.study.predictor.run import parameters_file, run_predictor, write_parameters
    from cotenant_lab.study.predictor.tables import show_predictor

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    directory = _directory(options)
    file = parameters_file(options.parameters) if options.parameters else None
    report, evidence, parameters = run_predictor(
        directory, seed, Console(stderr=True), print_line, quick=bool(options.quick), fit=file is not None
    )
    if draw is not None:
        draw(report, evidence)
    if file is not None:
        write_parameters(parameters, file)
        print_line(f"the fitted parameters are in {options.parameters}")
    _print_report(options, report, show_predictor)


def _study_placement(options: argparse.Namespace) -> None:
    from cotenant_lab.study.placement.report import run_placement
    from cotenant_lab.study.placement.tables import show_placement

    directory = _directory(options)
    report = run_placement(directory, _seed(options), Console(stderr=True), print_line, quick=bool(options.quick))
    _print_report(options, report, show_placement)


def _study_arkgpu(options: argparse.Namespace) -> None:
    from cotenant_lab.study.arkgpu.plots import plotter
    from cotenant_lab.study.arkgpu.report import run_arkgpu
    from cotenant_lab.study.arkgpu.tables import show_arkgpu

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    options_of_run = {"quick": bool(options.quick), "live": not options.no_live, "full": bool(options.full)}
    report, evidence = run_arkgpu(_directory(options), seed, Console(stderr=True), print_line, **options_of_run)
    if draw is not None:
        draw(report, evidence)
    _print_report(options, report, show_arkgpu)


def _study_baselines(options: argparse.Namespace) -> None:
    from cotenant_lab.study.baselines.run import run_baselines
    from cotenant_lab.study.baselines.tables import show_baselines

    directory = _directory(options)
    report = run_baselines(directory, _seed(options), Console(stderr=True), print_line, quick=bool(options.quick))
    _print_report(options, report, show_baselines)


def _study_dstack(options: argparse.Namespace) -> None:
    from cotenant_lab.study.dstack.plots import plotter
    from cotenant_lab.study.dstack.report import run_dstack
    from cotenant_lab.study.dstack.tables import show_dstack

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    report = run_dstack(_directory(options), seed, Console(stderr=True), print_line, quick=bool(options.quick))
    if draw is not None:
        draw(report)
    _print_report(options, report, show_dstack)


def _study_fikit(options: argparse.Namespace) -> None:
    from cotenant_lab.study.fikit.report import run_fikit
    from cotenant_lab.study.fikit.tables import show_fikit

    draw = None
    if options.plots:
        from cotenant_lab.study.fikit.plots import plotter

        draw = plotter(Path(options.plots))
    directory, quick = _directory(options), bool(options.quick)
    report = run_fikit(directory, options.live or "", _seed(options), Console(stderr=True), print_line, quick=quick)
    if draw is not None:
        draw(report)
    _print_report(options, report, show_fikit)


def _study_timelines(options: argparse.Namespace) -> None:
    from cotenant_lab.study.timelines.run import run_timelines, timelines_of
    from cotenant_lab.study.timelines.tables import show_timelines

    timelines = timelines_of(_directory(options) / "kernel_timelines")
    report = run_timelines(timelines, Path(options.replay or "examples/replay.py"), Console(stderr=True), print_line)
    _print_report(options, report, show_timelines)


def _study_device(options: argparse.Namespace) -> None:
    from cotenant_lab.study.device.run import run_device
    from cotenant_lab.study.device.tables import show_device

    seed, directory = _seed(options), _directory(options)
    draw = None
    if options.plots:
        from cotenant_lab.study.device.plots import plotter

        draw = plotter(Path(options.plots))
    report, evidence = run_device(directory, seed, Console(stderr=True), print_line)
    if draw is not None:
        draw(report, evidence)
    _print_report(options, report, show_device)


def _study_muri(options: argparse.Namespace) -> None:
    from cotenant_lab.study.muri.report import run_muri
    from cotenant_lab.study.muri.tables import show_muri

    report = run_muri(_directory(options), Console(stderr=True), print_line, quick=bool(options.quick))
    _print_report(options, report, show_muri)


def _study_muxflow(options: argparse.Namespace) -> None:
    from cotenant_lab.study.muxflow.plots import plotter
    from cotenant_lab.study.muxflow.run import run_muxflow
    from cotenant_lab.study.muxflow.tables import show_muxflow

    seed, draw = _seed(options), plotter(Path(options.plots)) if options.plots else None
    report = run_muxflow(_directory(options), seed, Console(stderr=True), print_line, quick=bool(options.quick))
    if draw is not None:
        draw(report)
    _print_report(options, report, show_muxflow)


def _study_all(options: argparse.Namespace) -> None:
    from cotenant_lab.study.all.run import run_all, show_all, write_page

    directory = _directory(options)
    seed, quick = _seed(options), bool(options.quick)
    report = run_all(directory, options.reuse or "", seed, Console(stderr=True), print_line, quick=quick)
    if options.report:
        write_page(Path(options.report), report)
    _print_report(options, report, show_all)


def _study_models(options: argparse.Namespace) -> None:
    from cotenant_lab.study.models.run import run_models
    from cotenant_lab.study.models.tables import show_models

    report, _ = run_models(_directory(options), Console(stderr=True), print_line, fit=bool(options.fit))
    _print_report(options, report, show_models)


_STUDIES: Final[dict[str, tuple[Callable[[argparse.Namespace], None], tuple[str, ...]]]] = {
    "device": (_study_device, ("replay", "quick", "live", "no-live")),
    "timelines": (_study_timelines, ("plots", "seed", "quick", "live", "no-live")),
    "fikit": (_study_fikit, ("replay", "no-live")),
    "muxflow-node": (_study_muxflow_node, ("replay", "live", "no-live")),
    "predictor": (_study_predictor, ("replay", "live", "no-live")),
    "placement-node": (_study_placement, ("plots", "replay", "live", "no-live")),
    "arkgpu": (_study_arkgpu, ("replay", "live")),
    "baselines": (_study_baselines, ("plots", "replay", "live", "no-live")),
    "dstack": (_study_dstack, ("replay", "live", "no-live")),
    "muxflow": (_study_muxflow, ("replay", "live", "no-live")),
    "all": (_study_all, ("plots", "replay", "live", "no-live")),
    "muri": (_study_muri, ("plots", "seed", "replay", "live", "no-live")),
    "models": (_study_models, ("plots", "seed", "quick", "replay", "live", "no-live")),
}
"""By name: the function that runs the study, and the flags that it does not accept."""
_OWN_FLAGS: Final = {"reuse": "all", "report": "all", "parameters": "predictor", "full": "arkgpu", "fit": "models"}
"""Flags that only one study accepts."""
