"""Commands about kernel profiles of programs: profile and advise."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

import msgspec

from cotenant.cli.command import (
    OUTPUT,
    add_command,
    add_flags,
    add_program,
    add_verbs,
    configure,
    find,
    group,
    load,
    output,
    print_json,
    print_line,
    program_of,
    whole_number,
)
from cotenant.cli.model_flags import add_model_flags
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError
from cotenant.units.text import parse_duration


def configure_profile(parser: Parser) -> None:
    verbs = add_verbs(parser)
    about = "Run a program as a tenant and time every kernel."
    add_program(add_command(verbs, "record", about, _record, "run", "directories"))
    add_command(verbs, "list", "List the stored profiles.", _list, "directories", json=True)
    about = "Show kernels, gaps between them, and how much of the gaps a co-tenant could fill."
    show = add_command(verbs, "show", about, _show, "directories", json=True)
    _add_task(show)
    about = "Write an HTML page to this file instead."
    group(show, OUTPUT).add_argument("--html", default="", metavar="FILE", help=about)
    _add_kernels(show, 20)
    diff = add_command(verbs, "diff", "Compare two profiles.", _diff, "directories", json=True)
    for side in ("before", "after"):
        diff.add_argument(side, metavar=side.upper(), help="A task, a unique part of its name, or a file.")
    _add_device(diff)
    about = "Requests in AFTER (default: launches of its least frequent kernel)."
    diff.add_argument("--requests", default="", metavar="N", help=about)
    _add_kernels(diff, 30)
    export = add_command(verbs, "export", "Write a profile as JSON.", _export, "directories")
    _add_task(export)
    about = "Write to this file instead of standard output."
    group(export, OUTPUT).add_argument("-o", "--output", default="", metavar="FILE", help=about)
    about = "Store profiles from traces, kernel tables or exported profiles, or estimated ones from models."
    import_ = add_command(verbs, "import", about, _import, "directories", json=True)
    about = "Recordings, which may be .gz or .tar.gz; or models: FILE.onnx, FILE.py or FILE.py:FUNCTION."
    import_.add_argument("files", nargs="+", metavar="FILE", help=about)
    add_model_flags(import_)
    import_.add_argument("--task", default="", metavar="KEY", help="Name of the task (default: the file's name).")
    import_.add_argument("--device", default="", metavar="NAME", help="Name of the device, if the file has none.")
    import_.add_argument("--image", default="", metavar="FILE", help="Also write a module image for a software GPU.")
    about = "Also write the launches as a script for examples/replay.py."
    import_.add_argument("--script", default="", metavar="FILE", help=about)
    about = "Learn correction factors of a GPU from measured latencies of models."
    correct = add_command(verbs, "correct", about, _correct, "directories", json=True)
    about = "FILE:batch=N,latency=DURATION, such as resnet.onnx:batch=8,latency=12ms."
    correct.add_argument("measurements", nargs="*", metavar="MEASUREMENT", help=about)
    add_model_flags(correct, batch=False)
    correct.add_argument("--forget", action="store_true", help="Remove the factors of this GPU instead.")
    prune = add_command(verbs, "prune", "Delete recordings.", _prune, "directories", json=True)
    selection = group(prune, "Selection")
    selection.add_argument("--task", default="", metavar="KEY", help="Only recordings of this task.")
    about = "Recordings older than this, such as 720h."
    selection.add_argument("--older-than", default=None, metavar="DURATION", help=about)
    about = "All but the latest N recordings of each task."
    selection.add_argument("--keep-latest", type=int, default=None, metavar="N", help=about)
    selection.add_argument("-a", "--all", action="store_true", help="Every recording.")


def _add_task(parser: Parser) -> None:
    parser.add_argument("task", metavar="TASK", help="The task, or a unique part of its name.")
    _add_device(parser)


def _add_device(parser: Parser) -> None:
    about = "The device, if the task has profiles of several."
    parser.add_argument("--device", default="", metavar="NAME", help=about)


def _add_kernels(parser: Parser, default: int) -> None:
    about = f"Number of kernels to list (default {default})."
    group(parser, OUTPUT).add_argument("--kernels", type=int, default=default, metavar="N", help=about)


def _record(options: argparse.Namespace) -> int:
    from cotenant.cli.tenant import run_program
    from cotenant.units.text import counted

    if vars(options)["run.measure"] is None:
        vars(options)["run.measure"] = "always"
    code, profiles = run_program(options, "cotenant profile record --task train -- python train.py")
    for profile in profiles:
        launches = sum(timing.launches for timing in profile.timings)
        timed = sum(timing.device.count for timing in profile.timings)
        kernels = counted(len(profile.timings), "kernel")
        print_line(f"{profile.task}: {kernels}, {launches:,} launches recorded, {timed:,} of them timed")
        if timed:
            print_line(f"show it with: cotenant profile show {shlex.quote(profile.task)}")
        else:
            print_line("no kernel was timed: record while no other tenant uses the device, and with --measure always")
    if not profiles:
        print_line("no GPU work was recorded; `cotenant doctor` checks whether the hook can be loaded")
    return code


def _list(options: argparse.Namespace) -> int:
    from cotenant.cli.render.profile import show_profiles
    from cotenant.profile import commands as profile
    from cotenant.profile.store import open_store

    store = open_store(load(options)[1], print_line)
    stored = profile.all_profiles(store)
    if options.json:
        print_json({"profiles": profile.keys_json(stored)})
    else:
        show_profiles(output(), stored, str(store.path))
    return 0


def _show(options: argparse.Namespace) -> int:
    from cotenant.cli.render.html.page import write_report
    from cotenant.cli.render.html.profile import profile_page
    from cotenant.cli.render.profile import show_profile
    from cotenant.profile import commands as profile
    from cotenant.profile.store import open_store
    from cotenant.runner.machine import read_machine

    if options.kernels < 1:
        raise ConfigError("--kernels", options.kernels, "list at least one kernel")
    loaded = profile.load_profile(open_store(load(options)[1], print_line), options.task, options.device)
    if options.html:
        write_report("--html", Path(options.html), profile_page(loaded, read_machine()))
        print_line(f"written: {options.html}")
    elif options.json:
        print_json(profile.profile_json(loaded))
    else:
        show_profile(output(), loaded, options.kernels)
    return 0


def _diff(options: argparse.Namespace) -> int:
    from cotenant.cli.render.model import show_families
    from cotenant.cli.render.profile import show_difference
    from cotenant.profile import commands as profile
    from cotenant.profile.estimate.compare import family_difference
    from cotenant.profile.store import open_store

    store = open_store(load(options)[1], print_line)
    before = profile.load_profile(store, options.before, options.device)
    after = profile.load_profile(store, options.after, options.device)
    changes = profile.difference(before, after)
    requests = whole_number("--requests", options.requests) if options.requests else 0
    families = family_difference(before, after, requests)
    if options.json:
        print_json({"before": before.task, "after": after.task, "kernels": changes, "families": families})
    else:
        show_difference(output(), before, after, changes, options.kernels)
        show_families(output(), families)
    return 0


def _export(options: argparse.Namespace) -> int:
    from cotenant.profile import commands as profile
    from cotenant.profile.store import open_store

    stored = profile.find_profile(open_store(load(options)[1], print_line), options.task, options.device)
    data = profile.export(stored.profile, options.output)
    if not options.output:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    return 0


def _import(options: argparse.Namespace) -> int:
    from cotenant.profile import commands as profile
    from cotenant.profile.estimate.model_files import is_model
    from cotenant.profile.store import open_store
    from cotenant.units.text import counted

    models = [name for name in options.files if is_model(name)]
    if models and len(models) < len(options.files):
        raise ConfigError("FILE", models[0], "is a model, and others are recordings; import them separately")
    if models:
        from cotenant.cli.model import import_models

        return import_models(options)
    if options.gpu:
        raise ConfigError("--gpu", options.gpu, "is for models; a recording names its device, or --device does")
    store = open_store(load(options)[1], print_line)
    added = profile.import_profiles(store, options.files, options.task, options.device, options.image, options.script)
    if options.json:
        print_json(
            {"imported": [{"task": new.task, "device": new.device, "kernels": len(new.timings)} for new in added]}
        )
        return 0
    for new in added:
        print_line(f"{new.task}: {counted(len(new.timings), 'kernel')} on {new.device or 'an unknown device'}")
    return 0


def _correct(options: argparse.Namespace) -> int:
    from cotenant.cli.model import correct_gpu

    return correct_gpu(options)


def _prune(options: argparse.Namespace) -> int:
    from cotenant.profile import commands as profile
    from cotenant.profile.store import open_store
    from cotenant.units.text import counted

    older_ns = None if options.older_than is None else parse_duration(options.older_than, field="--older-than")
    if options.keep_latest is not None and options.keep_latest < 0:
        raise ConfigError("--keep-latest", options.keep_latest, "keep 0 or more recordings of each task")
    if not (options.all or options.task or options.older_than or options.keep_latest is not None):
        raise ConfigError("prune", "", "choose recordings with --task, --older-than, --keep-latest or --all")
    deleted = profile.prune(open_store(load(options)[1], print_line), options.task, older_ns, options.keep_latest)
    if options.json:
        print_json({"deleted": deleted})
    else:
        print_line(f"{counted(deleted, 'recording')} deleted")
    return 0


def configure_advise(parser: Parser) -> None:
    configure(parser, _advise, "directories", json=True)
    # The program is not a tenant, so the flags of tenants do not apply. Every kernel is timed, so --measure does not.
    add_flags(parser, "run", ("gpu", "hook", "task", "unknown"))
    about = "Examine this running tenant instead of starting a program."
    parser.add_argument("--tenant", default="", metavar="NAME", help=about)
    add_program(parser)


def _advise(options: argparse.Namespace) -> int:
    from cotenant.cli.render.advice import show_advice
    from cotenant.node.client import advise
    from cotenant.node.client.hook_setup import store_profiles
    from cotenant.node.client.run import spec_of
    from cotenant.node.nvml import softgpu_directory
    from cotenant.profile.store import open_store
    from cotenant.softgpu.commands import home
    from cotenant.softgpu.selection import environment_of

    command = program_of(options, "", required=False)
    if bool(command) == bool(options.tenant):
        raise ConfigError("COMMAND", " ".join(command), "name a program, or a running tenant with --tenant; not both")
    config, directories = load(options)
    environ = {**os.environ, **environment_of(config.run.gpu, directories)}
    soft = softgpu_directory(environ, home(directories))
    if options.tenant:
        hooks = directories.runtime / "hook"
        profiles, memory = advise.observe_tenant(find(options)[1], hooks, options.tenant, soft, print_line)
        code = 0
    else:
        task = spec_of(config.run, command).task
        run = msgspec.structs.replace(config.run, measure="always", task=task)
        code, profiles, memory = advise.observe(run, command, environ, directories, soft, print_line)
        store_profiles(profiles, open_store(directories, print_line), print_line)
    advices = [advise.advice_of(profile) for profile in profiles]
    if options.json:
        print_json(advise.advice_json(advices, memory))
    else:
        show_advice(output(), advices, memory)
    return code
