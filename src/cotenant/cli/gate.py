"""What can be changed about tenants while they run, and how do they get on with each other?"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.live import Live

from cotenant.cli.command import add_command, add_flags, find, given_flags, print_json
from cotenant.errors import ConfigError

_NEITHER = (
    "say NAME and --priority, --slo, --share or --limit, or rules without a NAME: "
    "--gate, --bound, --delay, --patience, --switch, --spin"
)


def add_commands(commands: Any) -> None:
    for verb, run, about in (
        ("pause", _pause, "Let tenants launch nothing from their next launch on."),
        ("resume", _resume, "Let paused tenants go on."),
    ):
        parser = add_command(commands, verb, about, run, "directories", json=True)
        parser.add_argument("names", nargs="*", metavar="NAME", help="the tenants, by their names in `ps`")
        parser.add_argument("--all-offline", action="store_true", help="all offline tenants that are yours to change")
    about = "Let tenants end gracefully: their work drains, they get SIGTERM, and after a grace they are killed."
    evict = add_command(commands, "evict", about, _evict, "directories", json=True)
    evict.add_argument("names", nargs="+", metavar="NAME", help="the tenants, by their names in `ps`")
    evict.add_argument("--grace", metavar="DURATION", help="between SIGTERM and the kill; default: as each has it")
    about = "Change a tenant's priority, objective or share, or the rules of the gate, while tenants run."
    change = add_command(commands, "set", about, _set, "directories", json=True)
    change.add_argument("name", nargs="?", default="", metavar="NAME", help="the tenant, by its name in `ps`")
    change.add_argument("--priority", dest="run.priority", metavar="N", help="0 highest to 9; needs NAME")
    # Not the field of [run]: what the config says of a tenant to be run, its kind above all, says nothing of this one.
    change.add_argument(
        "--slo", metavar="DURATION", help="objective of an online tenant, from its next request on; 0s: none"
    )
    change.add_argument("--share", dest="run.share", metavar="SHARE", help="like 50%%, from its next launch on")
    change.add_argument("--limit", dest="run.limit", metavar="HOW", help="conserving, static or off")
    from cotenant.apps.gate import RULES

    top = add_command(commands, "top", "How do tenants get on with each other, now?", _top, "directories", json=True)
    top.add_argument("--once", action="store_true", help="for one second, and only once; with --json that is usual")
    top.add_argument("--seconds", type=int, metavar="N", help="every second, so many times; else until stopped")
    add_flags(change, "node", RULES, defaults=False)  # what is not given stays as it is


def _pause(options: argparse.Namespace) -> int:
    return _set_paused(options, paused=True)


def _resume(options: argparse.Namespace) -> int:
    return _set_paused(options, paused=False)


def _set_paused(options: argparse.Namespace, *, paused: bool) -> int:
    from cotenant.apps.gate import set_paused

    done = set_paused(find(options)[1].socket, options.names, all_offline=options.all_offline, paused=paused)
    if options.json:
        print_json({"tenants": done.tenants, "paused": paused})
    else:
        state = "paused" if paused else "resumed"
        print(f"{state}: {', '.join(done.tenants)}" if done.tenants else "no offline tenant of yours is here")
    return 0


def _evict(options: argparse.Namespace) -> int:
    from cotenant.apps.gate import evict

    done = evict(find(options)[1].socket, options.names, options.grace)
    if options.json:
        print_json({"tenants": done.tenants})
    else:
        print(f"on their way out: {', '.join(done.tenants)}")
    return 0


def _set(options: argparse.Namespace) -> int:
    from cotenant.apps.gate import set_objective, set_priority, set_rules, set_share
    from cotenant.apps.show import rules_json
    from cotenant.format.log import describe_objective, describe_rules
    from cotenant.format.quantity import format_share, parse_duration

    config, where = find(options)
    given = [field for section, field in given_flags(options) if section == "node"]
    wanted = {field for section, field in given_flags(options) if section == "run"}
    wanted |= set() if options.slo is None else {"slo"}
    slo_ns = None if options.slo is None else parse_duration(options.slo, field="--slo")
    priority = config.run.priority if "priority" in wanted else None
    share_ppm = int(config.run.share) if "share" in wanted else None
    limit = config.run.limit if "limit" in wanted else None
    if bool(options.name) != bool(wanted) or bool(options.name) == bool(given):
        raise ConfigError("NAME", options.name, _NEITHER)
    if len(wanted) > 1 and wanted & {"priority", "slo"}:
        field, value = ("--slo", options.slo) if priority is None else ("--priority", priority)
        raise ConfigError(field, value, "set priority, objective and share one after the other")
    if priority is not None:
        done = set_priority(where.socket, options.name, priority)
        told = f"{options.name} has priority {priority}"
    elif slo_ns is not None:
        done = set_objective(where.socket, options.name, slo_ns)
        told = f"{options.name} has {describe_objective(slo_ns)}"
    elif wanted:
        done = set_share(where.socket, options.name, share_ppm, limit)
        parts = [] if share_ppm is None else [f"a share of {format_share(share_ppm)}"]
        told = f"{options.name} has {' and '.join(parts + ([] if limit is None else [f'limit {limit}']))}"
    else:
        done = set_rules(where.socket, config.node, given)
        told = f"rules in force: {describe_rules(done.rules)}"
    if options.json:
        told_json = {"tenants": done.tenants, "priority": priority, "slo_ns": slo_ns, "share_ppm": share_ppm}
        print_json(told_json | {"limit": limit, "rules": rules_json(done.rules)})
    else:
        Console(soft_wrap=True).print(told, highlight=False, markup=False)
    return 0


def _top(options: argparse.Namespace) -> int:
    from cotenant.apps.top import top_json, top_tables, watch

    if options.seconds is not None and (options.seconds < 1 or options.once):
        raise ConfigError("--seconds", options.seconds, "write a whole number of at least 1, and not beside --once")
    once = options.once or (options.json and options.seconds is None)
    looks = watch(find(options)[1], 1 if once else options.seconds)
    console = Console()
    if options.json:
        for shown in looks:
            print_json(top_json(shown))
    elif once or not console.is_terminal:
        for shown in looks:
            console.print(top_tables(shown, console.width))
    else:
        with Live(console=console, auto_refresh=False) as live:
            for shown in looks:
                live.update(top_tables(shown, console.width), refresh=True)
    return 0
