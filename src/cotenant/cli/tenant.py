"""Commands about tenants: run, ps, pause, resume, evict, set and self."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cotenant.cli.command import (
    RESTRICTED,
    add_flags,
    add_program,
    configure,
    find,
    given_flags,
    group,
    load,
    load_own,
    output,
    print_json,
    print_line,
    program_of,
    refresh,
)
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError
from cotenant.gate.grant import Kind
from cotenant.node.config.file import validate_limit

if TYPE_CHECKING:
    from cotenant.profile.profile import Profile

_SET_USAGE: Final = (
    "give NAME and at least one of --priority, --slo, --share, --limit and --memory, or rules of the gate without "
    "a NAME: "
    "--gate, --bound, --delay, --patience, --switch, --spin"
)
_NAMES: Final = "Names of tenants, as `cotenant ps` lists them."


def configure_run(parser: Parser) -> None:
    configure(parser, _run, "run", "directories")
    add_kind(parser)
    about = "Run it in the background; `cotenant logs NAME` shows its output."
    group(parser, "Tenant").add_argument("-d", "--detach", action="store_true", help=about)
    add_program(parser)
    parser.epilog = "Example: cotenant run --online --slo 50ms -- python serve.py"


def add_kind(parser: Parser) -> None:
    """Add --online and --offline."""
    kinds = group(parser, "Tenant").add_mutually_exclusive_group()
    for kind in Kind:
        about = "The tenant is latency-critical and may have a latency objective."
        if kind is Kind.OFFLINE:
            about = "The tenant uses GPU time that online tenants leave idle (default)."
        kinds.add_argument(f"--{kind.value}", dest="run.kind", action="store_const", const=kind.value, help=about)


def configure_ps(parser: Parser) -> None:
    from cotenant.cli.kubernetes import add_cluster

    configure(parser, _ps, "directories", json=True)
    about = "Include tenants that have left, and how they ended."
    group(parser, "Output").add_argument("-a", "--all", action="store_true", help=about)
    about = "Refresh every second, until interrupted."
    group(parser, "Output").add_argument("-w", "--watch", action="store_true", help=about)
    add_cluster(parser, "List the pods of all nodes of a Kubernetes cluster.")


def configure_pause(parser: Parser) -> None:
    _configure_pause(parser, _pause)


def configure_resume(parser: Parser) -> None:
    _configure_pause(parser, _resume)


def _configure_pause(parser: Parser, run: Any) -> None:
    configure(parser, run, "directories", json=True)
    parser.add_argument("names", nargs="*", metavar="NAME", help=_NAMES)
    parser.add_argument("--all-offline", action="store_true", help="All offline tenants that you may change.")


def configure_evict(parser: Parser) -> None:
    configure(parser, _evict, "directories", json=True)
    parser.add_argument("names", nargs="+", metavar="NAME", help=_NAMES)
    about = "Time between SIGTERM and SIGKILL (default: the grace that each tenant was started with)."
    parser.add_argument("--grace", metavar="DURATION", help=about)


def configure_set(parser: Parser) -> None:
    from cotenant.node.client.commands import RULES

    configure(parser, _set, "directories", json=True)
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="Name of a tenant in `cotenant ps`.")
    flags = group(parser, "Tenant (with NAME)")
    flags.add_argument("--priority", dest="run.priority", metavar="N", help="Priority, 0 (highest) to 9.")
    # Not the field run.slo: the config's defaults for new tenants, such as their kind, do not apply to a running one.
    about = "Latency objective of an online tenant, from its next request on; 0s: none."
    flags.add_argument("--slo", metavar="DURATION", help=about)
    about = "Guaranteed share of the GPU, such as 50%%, from its next launch on."
    flags.add_argument("--share", dest="run.share", metavar="PERCENT", help=about)
    about = "How the share limits the tenant: conserving, static or off."
    flags.add_argument("--limit", dest="run.limit", metavar="LIMIT", help=about)
    about = "Device memory to reserve, which is also the limit, from its next allocation on; 0B: neither."
    flags.add_argument("--memory", dest="run.memory", metavar="SIZE", help=about)
    add_flags(parser, "node", RULES, defaults=False)  # a rule that is not given keeps its value


def configure_self(parser: Parser) -> None:
    configure(parser, _self, "directories", json=True)


def _run(options: argparse.Namespace) -> int:
    example = "cotenant run --online --slo 50ms -- python serve.py"
    if options.detach:
        import shutil

        from cotenant.cli.logs import start_detached

        if shutil.which(program_of(options, example)[0]):  # otherwise it fails here, at once
            return start_detached(options, find(options)[0].run.name)
    return run_program(options, example)[0]


def run_program(options: argparse.Namespace, example: str) -> tuple[int, list[Profile]]:
    """Run a program as a tenant, with the hook loaded; return its exit code and the profiles of its GPU work."""
    from cotenant.node.client.hami import apply_hami_limits
    from cotenant.node.client.hook_setup import NO_DRIVER, hooked_program, profiles_of, store_profiles, with_known_use
    from cotenant.node.client.outcome import outcome_file
    from cotenant.node.client.run import TenantRun, spec_of
    from cotenant.node.client.variables import read_variables
    from cotenant.profile.store import open_store
    from cotenant.softgpu.selection import environment_of, selected_gpu

    command = program_of(options, example)
    config, directories = find(options)
    own_directories = load_own(options)
    with outcome_file(config.run.outcome) as outcomes:
        variables = read_variables(config.run.variables)
        environment = {**variables, **environment_of(config.run.gpu, load(options)[1], {**os.environ, **variables})}
        run_config = apply_hami_limits(config.run, given_flags(options), os.environ, print_line)
        validate_limit(run_config)
        spec = spec_of(run_config, command, selected_gpu(config.run.gpu, os.environ))
        arguments = ["--runtime-dir", str(directories.runtime), "--state-dir", str(directories.state)]
        config_flag = ["--config", options.config] if options.config else []
        store = open_store(own_directories, print_line)
        spec = with_known_use(spec, store)
        environ = {**os.environ, **environment}
        # The hook is set up before the tenant joins: other tenants see it only once its program is about to start.
        with hooked_program(
            config.run, own_directories.runtime / "hook", environ, spec.task, store, print_line
        ) as hooked:
            tenant_run = TenantRun(
                directories, spec, config.run, command, environment, [*arguments, *config_flag], hooked, print_line
            )
            code = tenant_run.run()
            outcomes.append(tenant_run.outcome)
            profiles = [] if hooked is None else profiles_of(hooked.collect(spec.task), spec.task)
        store_profiles(profiles, store, print_line)
    if code and hooked is None and config.run.hook != "off" and sys.stderr.isatty():
        print_line(f"{NO_DRIVER}, then cotenant run --gpu soft:0 -- COMMAND")
    return code, profiles


def _ps(options: argparse.Namespace) -> int:
    if options.all_nodes:
        from cotenant.cli.kubernetes import show_pods

        return show_pods(options)
    return refresh(lambda: _show_tenants(options)) if options.watch else _show_tenants(options)


def _show_tenants(options: argparse.Namespace) -> int:
    from cotenant.cli.render.requests import served_so_far, show_requests, with_requests
    from cotenant.cli.render.tenants import accounts_of, show_tenants, tenants_json
    from cotenant.node.client.connection import list_tenants, read_activity

    directories = find(options)[1]
    registry, activity = list_tenants(directories), read_activity(directories)
    accounts, served = accounts_of(activity), served_so_far(activity, registry)
    ledgers = [gpu.ledger for gpu in activity.gpus if gpu.ledger is not None]
    if registry.is_restricted:
        print_line(RESTRICTED)
    if options.json:
        print_json(with_requests(tenants_json(registry, accounts, ledgers), served))
    else:
        console = output()
        show_tenants(console, registry, accounts, with_departed=options.all, ledgers=ledgers)
        show_requests(console, registry, served)
    return 0


def _pause(options: argparse.Namespace) -> int:
    return _set_paused(options, paused=True)


def _resume(options: argparse.Namespace) -> int:
    return _set_paused(options, paused=False)


def _set_paused(options: argparse.Namespace, *, paused: bool) -> int:
    from cotenant.node.client.commands import set_paused

    confirmation = set_paused(find(options)[1], options.names, all_offline=options.all_offline, paused=paused)
    if options.json:
        print_json({"tenants": confirmation.tenants, "paused": paused})
    else:
        state = "paused" if paused else "resumed"
        print(
            f"{state}: {', '.join(confirmation.tenants)}"
            if confirmation.tenants
            else "you have no offline tenants on this node"
        )
    return 0


def _evict(options: argparse.Namespace) -> int:
    from cotenant.node.client.commands import evict

    confirmation = evict(find(options)[1], options.names, options.grace)
    if options.json:
        print_json({"tenants": confirmation.tenants})
    else:
        print(f"evicting: {', '.join(confirmation.tenants)}")
    return 0


def _set(options: argparse.Namespace) -> int:
    from cotenant.cli.render.tenants import rules_json
    from cotenant.node.client.commands import set_rules, set_tenant
    from cotenant.node.decision_log import describe_objective, describe_rules
    from cotenant.units.text import format_share, format_size, parse_duration

    config, directories = find(options)
    rules = [field for section, field in given_flags(options) if section == "node"]
    values = {field for section, field in given_flags(options) if section == "run"}
    values |= set() if options.slo is None else {"slo"}
    slo_ns = None if options.slo is None else parse_duration(options.slo, field="--slo")
    priority = config.run.priority if "priority" in values else None
    share_ppm = int(config.run.share) if "share" in values else None
    limit = config.run.limit if "limit" in values else None
    memory_bytes = int(config.run.memory) if "memory" in values else None
    if bool(options.name) != bool(values) or bool(options.name) == bool(rules):
        raise ConfigError("NAME", options.name, _SET_USAGE)
    if values:
        confirmation = set_tenant(
            directories,
            options.name,
            priority=priority,
            slo_ns=slo_ns,
            share_ppm=share_ppm,
            limit=limit,
            memory_bytes=memory_bytes,
        )
        parts = [] if priority is None else [f"priority {priority}"]
        parts += [] if slo_ns is None else [describe_objective(slo_ns)]
        parts += [] if share_ppm is None else [f"a share of {format_share(share_ppm)}"]
        parts += [] if limit is None else [f"limit {limit}"]
        parts += [] if memory_bytes is None else [f"memory {format_size(memory_bytes)}"]
        message = f"{options.name} has {' and '.join(parts)}"
    else:
        confirmation = set_rules(directories, config.node, rules)
        message = f"rules in force: {describe_rules(confirmation.rules)}"
    if options.json:
        changed = {"tenants": confirmation.tenants, "priority": priority, "slo_ns": slo_ns, "share_ppm": share_ppm}
        print_json(changed | {"limit": limit, "memory_bytes": memory_bytes, "rules": rules_json(confirmation.rules)})
    else:
        print(message)
    return 0


def _self(options: argparse.Namespace) -> int:
    from cotenant.cli.render.tenants import show_grant
    from cotenant.node.client.connection import own_grant

    named = os.environ.get("COTENANT_SOCKET", "")
    path = Path(named) if named else find(options)[1].tenant_socket
    if not named and not path.exists():
        raise ConfigError(
            "COTENANT_SOCKET", "", "this process is no tenant; run the program with: cotenant run -- COMMAND"
        )
    answer = own_grant(path)
    if options.json:
        print_json(msgspec.structs.asdict(answer.grant))
    else:
        show_grant(output(), answer.grant, answer.tenant)
    return 0
