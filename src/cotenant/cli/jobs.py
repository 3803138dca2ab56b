"""Commands about a cluster's jobs: submit, jobs and cancel."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from cotenant.cli.command import (
    add_program,
    configure,
    group,
    load,
    output,
    print_json,
    print_line,
    program_of,
    whole_number,
)
from cotenant.cli.kubernetes import add_cluster, show_jobs
from cotenant.cli.parser import Parser


def configure_submit(parser: Parser) -> None:
    configure_client(parser, _submit)
    job = group(parser, "Job")
    job.add_argument("--name", default="", metavar="JOB", help="Name of the job (default: derived from the program).")
    about = "User that owns the job; only operators may name another user."
    job.add_argument("--user", default="", metavar="USER", help=about)
    about = "Priority of the job, -100 to 100; a higher one is placed first (default 0)."
    job.add_argument("--job-priority", type=int, default=0, metavar="N", help=about)
    job.add_argument(
        "--retries", default="3", metavar="N", help="Failures after which it is still retried (default 3)."
    )
    about = "Variable of its environment; may be repeated."
    job.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help=about)
    about = "Working directory on the node (default: the current one)."
    job.add_argument("--directory", default="", metavar="DIR", help=about)
    job.add_argument("--wait", action="store_true", help="Wait until the job ends; exit with 1 unless it succeeded.")
    needs = group(parser, "Resources and placement")
    needs.add_argument("--gpus", default="1", metavar="N", help="GPUs on one node, all at the same time (default 1).")
    needs.add_argument("--memory", default="0B", metavar="SIZE", help="Device memory on each of its GPUs.")
    about = "Type of GPU; repeat it to allow several types."
    needs.add_argument("--type", action="append", default=[], metavar="TYPE", help=about)
    about = "Smallest share of a GPU with which the job is started."
    needs.add_argument("--min-share", default="0%", metavar="PERCENT", help=about)
    about = "Online tenant or job group that the job must not share a GPU with; may be repeated."
    needs.add_argument("--avoid", action="append", default=[], metavar="NAME", help=about)
    about = "Group that other jobs can avoid."
    needs.add_argument("--job-group", default="", metavar="NAME", help=about)
    about = "Profile of the job; jobs of one profile are predicted alike."
    needs.add_argument("--profile", default="", metavar="TASK", help=about)
    about = "Run time of the job alone on its GPUs, if known."
    needs.add_argument("--work", default="0s", metavar="DURATION", help=about)
    add_program(parser)


def configure_jobs(parser: Parser) -> None:
    configure_client(parser, _jobs)
    selection = group(parser, "Selection")
    parser.add_argument("names", nargs="*", metavar="JOB", help="Only these jobs (default: all).")
    selection.add_argument("--user", default="", metavar="USER", help="Only jobs of this user.")
    selection.add_argument("--active", action="store_true", help="Only jobs that have not ended.")
    about = "Refresh every second, until interrupted."
    group(parser, "Output").add_argument("-w", "--watch", action="store_true", help=about)
    add_cluster(parser, "List the Jobs of a Kubernetes cluster that use a GPU of cotenant.")


def configure_cancel(parser: Parser) -> None:
    configure_client(parser, _cancel)
    parser.add_argument("names", nargs="+", metavar="JOB", help="Names of jobs, as `cotenant jobs` lists them.")


def configure_client(parser: Parser, run: Any) -> None:
    """Configure a command that sends a request to the controller of a cluster."""
    configure(parser, run, "directories", json=True)
    connection = group(parser, "Connection")
    about = "Identity of the caller (default: $COTENANT_IDENTITY, or the operator of this machine's controller)."
    connection.add_argument("--identity", default="", metavar="FILE", help=about)
    about = "Address of the controller (default: the one in the identity)."
    connection.add_argument("--controller", default="", metavar="HOST:PORT", help=about)


def identity(options: argparse.Namespace) -> Any:
    """Return the identity of the caller and the address of the controller."""
    from cotenant.cluster.daemon.commands import identity_of

    return identity_of(options.identity, options.controller, os.environ, load(options)[1])


def _submit(options: argparse.Namespace) -> int:
    from cotenant.cli.render.cluster import job_json
    from cotenant.cluster.daemon import commands as client
    from cotenant.profile.commands import open_store
    from cotenant.units.text import parse_duration, parse_share, parse_size

    command = program_of(options, "cotenant submit --gpus 1 -- python train.py")
    directories = load(options)[1]
    caller = identity(options)
    fields = {
        "name": options.name,
        "user": options.user,
        "work_ns": parse_duration(options.work, field="--work"),
        "profile": options.profile,
        "memory_bytes": parse_size(options.memory, field="--memory"),
        "gpus": whole_number("--gpus", options.gpus),
        "types": tuple(options.type),
        "min_share_ppm": parse_share(options.min_share, field="--min-share"),
        "priority": options.job_priority,
        "avoid": tuple(options.avoid),
        "group": options.job_group,
        "environment": tuple(options.env),
        "directory": options.directory or str(Path.cwd()),
        "retries": whole_number("--retries", options.retries),
    }
    spec = client.with_known_use(
        client.spec_of(fields, command, caller, os.environ), open_store(directories, print_line)
    )
    client.submit(caller, spec)
    if not options.wait:
        if options.json:
            print_json({"job": spec.name})
        else:
            print(spec.name)
        return 0
    job = _wait(client.follow(caller, spec.name, print_line), spec.name)
    if options.json:
        print_json(job_json(job))
    else:
        print_line(f"{job.spec.name} is {job.state.value}{': ' if job.why else ''}{job.why}")
    return client.exit_code_of(job)


def _wait(reports: Any, name: str) -> Any:
    """Return the job once it has ended; until then a terminal shows its state."""
    from cotenant.units.text import round_share

    job = None
    with Console(stderr=True).status(f"{name}: submitted") as status:
        for job in reports:
            done = f", {round_share(job.progress_ppm)} done" if job.progress_ppm else ""
            status.update(f"{name}: {job.state.value}{f' on {job.node}' if job.node else ''}{done} {job.why}")
    return job


def _jobs(options: argparse.Namespace) -> int:
    if options.all_nodes:
        return show_jobs(options, options.names, watch=options.watch)
    from cotenant.cli.render.cluster import jobs_json, jobs_table
    from cotenant.cluster.daemon import commands as client

    caller = identity(options)

    def read() -> client.JobList:
        return client.jobs(caller, options.names, options.user, also_over=not options.active)

    console = output()
    if not options.watch:
        job_list = read()
        if options.json:
            print_json(jobs_json(job_list))
        else:
            console.print(jobs_table(job_list))
        return 0
    live_view = not options.json and console.is_terminal
    with Live(console=console, auto_refresh=False) if live_view else contextlib.nullcontext() as live:
        for job_list in client.watch_jobs(read, print_line):
            if live is not None:
                live.update(jobs_table(job_list), refresh=True)
            elif options.json:
                print_json(jobs_json(job_list))
            else:
                console.print(jobs_table(job_list))
    return 0


def _cancel(options: argparse.Namespace) -> int:
    from cotenant.cluster.daemon import commands as client

    client.cancel(identity(options), options.names)
    if options.json:
        print_json({"cancelled": options.names})
    else:
        print_line(f"cancelled: {', '.join(options.names)}")
    return 0
