"""What can be asked of profiles?"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from cotenant.cli.command import add_command, load, print_json, say
from cotenant.errors import ConfigError
from cotenant.format.quantity import parse_duration


def add_commands(commands: Any) -> None:
    """`cotenant profile VERB`."""
    about = "Profiles: what each program's kernels take, and what they leave."
    parser: argparse.ArgumentParser = commands.add_parser("profile", help=about, description=about)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    record = add_command(verbs, "record", "Run a program and time every kernel.", _record, "directories", "run")
    record.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")
    add_command(verbs, "list", "Which profiles are there?", _list, "directories", json=True)
    show = add_command(
        verbs, "show", "Kernels, gaps, and what a neighbour could fill.", _show, "directories", json=True
    )
    _add_task(show)
    show.add_argument("--html", default="", metavar="FILE", help="write a page for a browser instead")
    show.add_argument("--most", type=int, default=20, metavar="N", help="how many kernels to list (default 20)")
    diff = add_command(verbs, "diff", "What changed between two profiles?", _diff, "directories", json=True)
    for side in ("before", "after"):
        diff.add_argument(side, metavar=side.upper(), help="a task, a part of its name, or a file")
    diff.add_argument("--device", default="", metavar="NAME", help="the device, where a task has several")
    diff.add_argument("--most", type=int, default=30, metavar="N", help="how many kernels to list (default 30)")
    export = add_command(verbs, "export", "A profile as a JSON file.", _export, "directories")
    _add_task(export)
    export.add_argument("-o", "--output", default="", metavar="FILE", help="instead of the terminal")
    about = "Take in PyTorch profiler traces, tables of kernels, exported profiles."
    bring = add_command(verbs, "import", about, _import, "directories", json=True)
    bring.add_argument("files", nargs="+", metavar="FILE", help="also .gz and .tar.gz")
    bring.add_argument("--task", default="", metavar="KEY", help="the task's name instead of the file's")
    bring.add_argument("--device", default="", metavar="NAME", help="the device's name, where the file has none")
    bring.add_argument("--image", default="", metavar="FILE", help="also write a software GPU's image")
    bring.add_argument("--script", default="", metavar="FILE", help="also write the launches, for examples/replay.py")
    prune = add_command(verbs, "prune", "Forget recordings.", _prune, "directories", json=True)
    prune.add_argument("--task", default="", metavar="KEY", help="of this task alone")
    prune.add_argument("--older", default=None, metavar="DURATION", help="made longer ago than this, as in 720h")
    prune.add_argument("--keep", type=int, default=None, metavar="N", help="all but the latest N of each task")
    prune.add_argument("--all", action="store_true", help="every recording")


def _add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="its task, or a part of it that no other has")
    parser.add_argument("--device", default="", metavar="NAME", help="the device, where a task has several")


def _record(options: argparse.Namespace) -> int:
    from cotenant.cli.node import run_program
    from cotenant.format.quantity import counted

    if vars(options)["run.measure"] is None:
        vars(options)["run.measure"] = "always"
    code, profiles = run_program(options, "cotenant profile record --task train -- python train.py")
    for one in profiles:
        launches = sum(timing.launches for timing in one.timings)
        timed = sum(timing.device.count for timing in one.timings)
        kernels = counted(len(one.timings), "kernel")
        say(f"{one.task}: {kernels}, {launches:,} launches recorded, {timed:,} of them timed")
        if timed:
            say(f"look at it with: cotenant profile show {shlex.quote(one.task)}")
        else:
            say("no time was learned: record it while no other tenant is on the device, and with --measure always")
    if not profiles:
        say("no GPU work was recorded; `cotenant doctor` tells whether the hook can see any")
    return code


def _list(options: argparse.Namespace) -> int:
    from cotenant.apps import profile
    from cotenant.apps.show_profile import show_profiles

    store = profile.store_of(load(options)[1], say)
    kept = profile.everything(store)
    if options.json:
        print_json({"profiles": profile.keys_json(kept)})
    else:
        show_profiles(Console(), kept, str(store.path))
    return 0


def _show(options: argparse.Namespace) -> int:
    from cotenant.apps import profile
    from cotenant.apps.page_profile import profile_page
    from cotenant.apps.show_profile import show_profile

    if options.most < 1:
        raise ConfigError("--most", options.most, "list at least one kernel")
    found = profile.any_profile(profile.store_of(load(options)[1], say), options.task, options.device)
    if options.html:
        profile.write_file(Path(options.html), profile_page(found).encode())
        say(f"written: {options.html}")
    elif options.json:
        print_json(profile.profile_json(found))
    else:
        show_profile(Console(), found, options.most)
    return 0


def _diff(options: argparse.Namespace) -> int:
    from cotenant.apps import profile
    from cotenant.apps.show_profile import show_difference

    store = profile.store_of(load(options)[1], say)
    before = profile.any_profile(store, options.before, options.device)
    after = profile.any_profile(store, options.after, options.device)
    changes = profile.difference(before, after)
    if options.json:
        print_json({"before": before.task, "after": after.task, "kernels": changes})
    else:
        show_difference(Console(), before, after, changes, options.most)
    return 0


def _export(options: argparse.Namespace) -> int:
    from cotenant.apps import profile

    kept = profile.find(profile.store_of(load(options)[1], say), options.task, options.device)
    data = profile.export(kept.profile, options.output)
    if not options.output:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    return 0


def _import(options: argparse.Namespace) -> int:
    from cotenant.apps import profile
    from cotenant.format.quantity import counted

    store = profile.store_of(load(options)[1], say)
    added = profile.bring_in(store, options.files, options.task, options.device, options.image, options.script)
    if options.json:
        print_json(
            {"imported": [{"task": one.task, "device": one.device, "kernels": len(one.timings)} for one in added]}
        )
        return 0
    for one in added:
        say(f"{one.task}: {counted(len(one.timings), 'kernel')} on {one.device or 'an unknown device'}")
    return 0


def _prune(options: argparse.Namespace) -> int:
    from cotenant.apps import profile
    from cotenant.format.quantity import counted

    older_ns = None if options.older is None else parse_duration(options.older, field="--older")
    if options.keep is not None and options.keep < 0:
        raise ConfigError("--keep", options.keep, "keep 0 or more recordings of each task")
    if not (options.all or options.task or options.older or options.keep is not None):
        raise ConfigError("prune", "", "say what to forget: --task KEY, --older DURATION, --keep N, or --all")
    gone = profile.prune(profile.store_of(load(options)[1], say), options.task, older_ns, options.keep)
    if options.json:
        print_json({"forgotten": gone})
    else:
        say(f"{counted(gone, 'recording')} forgotten")
    return 0
