"""What can a user ask of a cluster? To run a job, how the jobs stand, and to end one."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any

from cotenant.cli.command import add_command, load, print_json, say
from cotenant.errors import ConfigError


def add_commands(commands: Any) -> None:
    submit = asking(
        commands, "submit", "Have a program run somewhere in the cluster, on what online work leaves.", _submit
    )
    submit.add_argument("--name", default="", metavar="JOB", help="what to call it (default: made from the program)")
    submit.add_argument("--user", default="", metavar="USER", help="whose it is; only operators may name others")
    submit.add_argument("--gpus", default="1", metavar="N", help="GPUs of one node, all at once (default 1)")
    submit.add_argument("--memory", default="0B", metavar="SIZE", help="device memory on each of its GPUs")
    submit.add_argument("--type", action="append", default=[], metavar="TYPE", help="type of GPU; several: any of them")
    submit.add_argument("--profile", default="", metavar="TASK", help="jobs of the same profile are alike")
    submit.add_argument("--work", default="0s", metavar="DURATION", help="how long it takes alone, if that is known")
    submit.add_argument("--least", default="0%", metavar="PERCENT", help="share of a GPU below which it is not started")
    submit.add_argument(
        "--priority", type=int, default=0, metavar="N", help="-100 to 100, higher goes first (default 0)"
    )
    submit.add_argument(
        "--avoid", action="append", default=[], metavar="NAME", help="online tenant or group to keep from"
    )
    submit.add_argument("--group", default="", metavar="NAME", help="what others can avoid")
    submit.add_argument("--retries", default="3", metavar="N", help="failures of its own that are forgiven (default 3)")
    submit.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help="for its environment")
    submit.add_argument("--directory", default="", metavar="DIR", help="where it runs on the node (default: as here)")
    submit.add_argument("--wait", action="store_true", help="until it is over; exit code 1 unless it is done")
    submit.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")
    jobs = asking(commands, "jobs", "How do the cluster's jobs stand, and why do some wait?", _jobs)
    jobs.add_argument("names", nargs="*", metavar="JOB", help="only these (default all)")
    jobs.add_argument("--user", default="", metavar="USER", help="only of this user")
    jobs.add_argument("--active", action="store_true", help="only those that are not over")
    jobs.add_argument("--watch", action="store_true", help="look again every second, until stopped")
    cancel = asking(commands, "cancel", "Have jobs ended, or not begun.", _cancel)
    cancel.add_argument("names", nargs="+", metavar="JOB")


def asking(commands: Any, name: str, about: str, run: Any) -> argparse.ArgumentParser:
    """A command that asks the brain something."""
    parser = add_command(commands, name, about, run, "directories", json=True)
    about = "who asks (default: $COTENANT_IDENTITY, else the operator of this machine's brain)"
    parser.add_argument("--identity", default="", metavar="FILE", help=about)
    parser.add_argument(
        "--brain", default="", metavar="HOST:PORT", help="where the brain is (default: as identity says)"
    )
    return parser


def identity(options: argparse.Namespace) -> Any:
    """Who asks whom."""
    from cotenant.apps.cluster_ask import identity_of

    return identity_of(options.identity, options.brain, os.environ, load(options)[1])


def whole(flag: str, text: str) -> int:
    """A whole number, or a sentence that says that it is none."""
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise ConfigError(flag, text, "write a whole number of at least 0")
    return int(text)


def _submit(options: argparse.Namespace) -> int:
    from cotenant.apps import cluster_ask as ask
    from cotenant.apps.profile import store_of
    from cotenant.apps.show_cluster import job_json
    from cotenant.format.quantity import parse_duration, parse_share, parse_size

    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not command:
        raise ConfigError("COMMAND", "", "say what to run, as in: cotenant submit --gpus 1 -- python train.py")
    places = load(options)[1]
    asker = identity(options)
    wished = {
        "name": options.name,
        "user": options.user,
        "work_ns": parse_duration(options.work, field="--work"),
        "profile": options.profile,
        "memory_bytes": parse_size(options.memory, field="--memory"),
        "gpus": whole("--gpus", options.gpus),
        "types": tuple(options.type),
        "least_ppm": parse_share(options.least, field="--least"),
        "priority": options.priority,
        "avoid": tuple(options.avoid),
        "group": options.group,
        "environment": tuple(options.env),
        "directory": options.directory or str(Path.cwd()),
        "retries": whole("--retries", options.retries),
    }
    spec = ask.with_known_use(ask.spec_of(wished, command, asker, os.environ), store_of(places, say))
    ask.submit(asker, spec)
    if not options.wait:
        if options.json:
            print_json({"job": spec.name})
        else:
            print(spec.name)
        return 0
    job = _wait(ask.follow(asker, spec.name, say), spec.name)
    if options.json:
        print_json(job_json(job))
    else:
        say(f"{job.spec.name} is {job.state.value}{': ' if job.why else ''}{job.why}")
    return ask.exit_code_of(job)


def _wait(looks: Any, name: str) -> Any:
    """The job once it is over; meanwhile whoever looks at the terminal sees how it stands."""
    from rich.console import Console

    from cotenant.format.quantity import round_share

    job = None
    with Console(stderr=True).status(f"{name}: submitted") as status:
        for job in looks:
            done = f", {round_share(job.progress_ppm)} done" if job.progress_ppm else ""
            status.update(f"{name}: {job.state.value}{f' on {job.node}' if job.node else ''}{done} {job.why}")
    return job


def _jobs(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from cotenant.apps import cluster_ask as ask
    from cotenant.apps.show_cluster import jobs_json, jobs_table

    asker = identity(options)

    def look() -> ask.JobsShown:
        return ask.jobs(asker, options.names, options.user, also_over=not options.active)

    console = Console()
    if not options.watch:
        shown = look()
        if options.json:
            print_json(jobs_json(shown))
        else:
            console.print(jobs_table(shown))
        return 0
    with contextlib.nullcontext() if options.json else Live(console=console, auto_refresh=False) as live:
        for shown in ask.watch_jobs(look, say):
            if live is None:
                print_json(jobs_json(shown))
            else:
                live.update(jobs_table(shown), refresh=True)
    return 0


def _cancel(options: argparse.Namespace) -> int:
    from cotenant.apps import cluster_ask as ask

    asker = identity(options)
    ask.cancel(asker, options.names)
    if options.json:
        print_json({"cancelled": options.names})
    else:
        say(f"cancelled: {', '.join(options.names)}")
    return 0
