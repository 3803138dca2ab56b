"""Commands that run decision code under a simulated clock or from a journal: simulate and replay."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cotenant.cli.command import OUTPUT, configure, group, output, print_json, print_line
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError
from cotenant.units.instant import SECOND_NS

if TYPE_CHECKING:  # imported when a cluster is simulated: it takes longer than a short scenario
    from cotenant.simulate.cluster import ClusterOutcome


def configure_simulate(parser: Parser) -> None:
    configure(parser, _simulate, json=True)
    parser.add_argument("scenario", metavar="SCENARIO", help="TOML file that describes a node, a cluster or kernels.")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="Seed to use instead of the scenario's.")
    about = "Directory of the data sets that the scenario names (default $COTENANT_DATA)."
    parser.add_argument("--data", default="", metavar="DIR", help=about)
    format_group = group(parser, OUTPUT)
    _add_verbose(parser)
    about = "Node scenarios: write the journal to this file."
    format_group.add_argument("--journal", default="", metavar="FILE", help=about)
    about = "Cluster scenarios: write an HTML page with plots to this file."
    format_group.add_argument("--report", default="", metavar="FILE", help=about)


def configure_replay(parser: Parser) -> None:
    configure(parser, _replay, json=True)
    parser.add_argument("file", metavar="FILE", help="Journal in the state directory of a node.")
    _add_verbose(parser)


def _add_verbose(parser: Parser) -> None:
    group(parser, OUTPUT).add_argument("-v", "--verbose", action="store_true", help="Print every event and action.")


def _replay(options: argparse.Namespace) -> int:
    from cotenant.cli.render.simulate import show_replay
    from cotenant.simulate.replay import replay_file

    report = replay_file(Path(options.file), print if options.verbose else None)
    if options.json:
        print_json(report)
    else:
        show_replay(output(), report)
    return 0 if report.reproduced else 1


def _simulate(options: argparse.Namespace) -> int:
    from cotenant.cli.render.simulate import show_outcome
    from cotenant.cluster.sim.scenario import is_of_cluster
    from cotenant.simulate.kernels_format import is_of_kernels
    from cotenant.simulate.node import read_scenario, simulate_file

    text = read_scenario(Path(options.scenario))
    if is_of_cluster(text):
        return _simulate_cluster(options)
    if options.report:
        raise ConfigError("--report", options.report, "only a cluster scenario has a report; omit --report")
    if is_of_kernels(text):
        return _simulate_kernels(options)
    outcome = simulate_file(Path(options.scenario), options.seed, options.journal, print if options.verbose else None)
    if options.json:
        print_json(outcome)
    else:
        show_outcome(output(), outcome)
    return 0


def _simulate_cluster(options: argparse.Namespace) -> int:
    from cotenant.cli.render.cluster_result import show_cluster_outcome

    if options.journal:
        remedy = "only a node scenario writes a journal; omit --journal"
        raise ConfigError("--journal", options.journal, remedy)
    log = (lambda line: print(line, end="")) if options.verbose else None
    outcome = simulate_cluster_file(
        Path(options.scenario), options.seed, options.report, Console(stderr=True), log, options.data
    )
    if options.json:
        print_json(outcome)
    else:
        show_cluster_outcome(output(), outcome)
    return 1 if outcome.problems else 0


def _simulate_kernels(options: argparse.Namespace) -> int:
    from cotenant.cli.render.kernels import show_kernels
    from cotenant.simulate.kernels_scenario import simulate_kernels_file

    if options.journal or options.verbose:
        flag = "--journal" if options.journal else "--verbose"
        raise ConfigError(flag, options.journal or True, f"a kernel scenario has no events of a node; omit {flag}")
    outcome = simulate_kernels_file(Path(options.scenario), options.seed, print_line, options.data)
    if options.json:
        print_json(outcome)
    else:
        show_kernels(output(), outcome)
    return 0


def simulate_cluster_file(
    path: Path, seed: int | None, page: str, console: Console, log: Callable[[str], None] | None, data: str = ""
) -> ClusterOutcome:
    """Run a cluster scenario and return its outcome; `log` gets a line for each decision."""
    from cotenant.cli.render.html.cluster import cluster_page
    from cotenant.cli.render.html.page import check_report, write_report
    from cotenant.cluster.sim.scenario import decode_cluster
    from cotenant.runner.machine import read_machine
    from cotenant.simulate.cluster import simulate_cluster
    from cotenant.simulate.node import read_scenario

    scenario = decode_cluster(read_scenario(path), str(path))
    if seed is not None:
        if seed < 0:
            raise ConfigError("--seed", seed, "choose 0 or more")
        scenario = msgspec.structs.replace(scenario, seed=seed)
    machine = read_machine()
    if page:
        check_report("--report", page)
    with show_progress(console, path.stem) as progress:
        cluster_run = simulate_cluster(scenario, path, data=data, report=log, progress=progress)
    if page:
        write_report("--report", Path(page), cluster_page(cluster_run, path.stem, machine))
    return cluster_run.outcome


@contextlib.contextmanager
def show_progress(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows progress in simulated time: a bar on a terminal, ten lines elsewhere."""
    hours = TextColumn("{task.fields[hours]}")
    columns = (TextColumn("{task.description}"), BarColumn(), hours, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(name, total=None, hours="")
        tenths = [0]

        def progress(done_ns: int, total_ns: int) -> None:
            progress_text = f"{done_ns / SECOND_NS / 3600:.1f} of {total_ns / SECOND_NS / 3600:.1f} h"
            bars.update(task, completed=done_ns, total=total_ns, hours=progress_text)
            tenth = done_ns * 10 // max(total_ns, 1)
            if not console.is_terminal and tenth != tenths[-1]:
                tenths.append(tenth)
                console.print(f"{name}: {progress_text}", highlight=False)

        yield progress
