"""What can be asked of this machine's node and its tenants?"""

from __future__ import annotations

import argparse
import os
from typing import Any

import msgspec

from cotenant.cli.command import add_command, find, given_flags, load, print_json, say
from cotenant.domain.profile import Profile
from cotenant.domain.tenant import Kind
from cotenant.errors import ConfigError
from cotenant.format.config import encode_config, plain, validate_limit
from cotenant.format.flags import SECTIONS, sources
from cotenant.live.directory import config_file


def add_commands(commands: Any) -> None:
    node = add_command(
        commands,
        "node",
        "Be this machine's node: the daemon that tenants register with.",
        _node,
        "directories",
        "node",
        "protect",
        "control",
        "agent",
    )
    node.add_argument(
        "--gpu",
        action="append",
        default=[],
        dest="devices",
        metavar="NAME=MEMORY",
        help="a GPU to share, in the order of their numbers, may be repeated; `none`: no GPU; default: what is found",
    )
    run = add_command(commands, "run", "Run a program as a tenant.", _run, "directories", "run")
    kind = run.add_mutually_exclusive_group()
    for word in Kind:
        about = "it has a latency objective" if word is Kind.ONLINE else "it takes what is left (default)"
        kind.add_argument(f"--{word.value}", dest="run.kind", action="store_const", const=word.value, help=about)
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")
    ps = add_command(commands, "ps", "Who shares this machine's GPUs?", _ps, "directories", json=True)
    ps.add_argument("--all", action="store_true", help="also those who left, and how they ended")
    add_command(commands, "doctor", "Is this machine ready, and if not, what to do?", _doctor, "directories", json=True)
    add_command(commands, "terms", "Inside a tenant: what may I do?", _terms, json=True)
    config = add_command(commands, "config", "Show or check the configuration.", _config, *SECTIONS, json=True)
    config.add_argument("what", choices=["show", "check"], help="show: every value and its source; check: read it only")
    config.add_argument("--online", dest="run.kind", action="store_const", const="online", help="as in `run`")
    config.add_argument("--offline", dest="run.kind", action="store_const", const="offline", help="as in `run`")


def _node(options: argparse.Namespace) -> int:
    from cotenant.apps.node import serve_node
    from cotenant.apps.node_join import agent_beside
    from cotenant.live.observe.log import NodeLog

    config, where = load(options)
    log = NodeLog(config.node.log, where.log)
    with agent_beside(config.agent, where, options.config, log.say):
        serve_node(config, where, log)
    return 0


def _run(options: argparse.Namespace) -> int:
    return run_program(options, "cotenant run --online --slo 50ms -- python serve.py")[0]


def run_program(options: argparse.Namespace, example: str) -> tuple[int, list[Profile]]:
    """Run a program as a tenant, with the hook in it: its exit code, and what was recorded of its GPU work."""
    from cotenant.apps.hami import with_hami
    from cotenant.apps.hook import hook_into, keep, profiles_of, with_use
    from cotenant.apps.outcome import told_in
    from cotenant.apps.profile import store_of
    from cotenant.apps.run import Tenancy, spec_of
    from cotenant.apps.softgpu import environment_of, wished_gpu
    from cotenant.apps.variables import variables_in

    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not command:
        raise ConfigError("COMMAND", "", f"say what to run, as in: {example}")
    config, where = find(options)
    own = load(options)[1]
    with told_in(config.run.outcome) as ended:
        given = variables_in(config.run.variables)
        environment = {**given, **environment_of(config.run.gpu, own, {**os.environ, **given})}
        wanted = with_hami(config.run, given_flags(options), os.environ, say)
        validate_limit(wanted)
        spec = spec_of(wanted, command, wished_gpu(config.run.gpu, os.environ))
        arguments = ["--runtime", str(where.runtime), "--state", str(where.state)]
        named = ["--config", options.config] if options.config else []
        store = store_of(own, say)
        spec = with_use(spec, store)
        surroundings = {**os.environ, **environment}
        # Before it joins: a tenant that others can see is a program that is about to run, and has no other children.
        with hook_into(config.run, own.runtime / "hook", surroundings, spec.task, store, say) as hooked:
            tenancy = Tenancy(where, spec, config.run, command, environment, [*arguments, *named], hooked, say)
            code = tenancy.run()
            ended.append(tenancy.outcome)
            profiles = [] if hooked is None else profiles_of(hooked.collect(spec.task), spec.task)
        keep(profiles, store, say)
    return code, profiles


def _ps(options: argparse.Namespace) -> int:
    from rich.console import Console

    from cotenant.apps.show import accounts_of, show_tenants, tenants_json
    from cotenant.apps.show_requests import served_so_far, show_requests, with_requests
    from cotenant.live.client import tenants_of

    where = find(options)[1]
    roll = tenants_of(where.socket)
    held, served = accounts_of(where.pages, roll), served_so_far(where.pages, roll)
    if options.json:
        print_json(with_requests(tenants_json(roll, held), served))
    else:
        show_tenants(Console(), roll, held, everybody=options.all)
        show_requests(Console(), roll, served)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from rich.console import Console

    from cotenant.apps.show import show_findings
    from cotenant.live.doctor import Level, examine

    findings = examine(find(options)[1])
    if not options.json:
        return 0 if show_findings(Console(), findings) else 1
    found = list(findings)
    print_json({"findings": found})
    return 1 if any(finding.level is Level.BAD for finding in found) else 0


def _terms(options: argparse.Namespace) -> int:
    from rich.console import Console

    from cotenant.apps.show import show_terms
    from cotenant.live.page import own_terms

    terms = own_terms(os.environ)
    if options.json:
        print_json(msgspec.structs.asdict(terms))
    else:
        show_terms(Console(), terms, os.environ.get("COTENANT_TENANT", ""))
    return 0


def _config(options: argparse.Namespace) -> int:
    path, named = config_file(os.environ, os.geteuid(), options.config)
    config, where = load(options)
    if options.what == "check":
        from cotenant.apps.hami import with_hami

        validate_limit(with_hami(config.run, given_flags(options), os.environ, lambda _: None))
        found = named or path.exists()
        say(f"{path}: {'fine' if found else 'there is none, the defaults hold'}")
        return 0
    if options.json:
        print_json(plain(config))
        return 0
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    print(f"# socket, lock and pages: {where.runtime}\n# journal and log: {where.state}\n")
    print(encode_config(config, sources(text, str(path), given_flags(options))), end="")
    return 0
