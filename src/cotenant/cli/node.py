"""Commands about this machine's node: node, doctor and config."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cotenant.cli.command import (
    add_command,
    add_flags,
    configure,
    find,
    given_flags,
    group,
    load,
    output,
    print_json,
    print_line,
)
from cotenant.cli.flags import SECTION_TITLES, SECTIONS, sources
from cotenant.cli.parser import Parser
from cotenant.cli.tenant import add_kind
from cotenant.errors import ConfigError
from cotenant.node.config.file import DirectoriesConfig, encode_config, plain, validate_limit
from cotenant.node.directories import Directories, config_file, lock_holder, resolve_directories
from cotenant.runner.address import split_address
from cotenant.runner.atomic_file import write_atomically
from cotenant.units.text import parse_duration

_WEB_ADDRESS: Final = "127.0.0.1:7070"
_NOT_RUNNING: Final = 3
"""The exit code of `cotenant node status` without a node, as for the status of a service in the LSB."""


def configure_node(parser: Parser) -> None:
    configure(parser, _node, "node", "operators", "protect", "control", "directories")
    about = "A GPU to share; repeat it for more, in the order of their numbers; none: no GPU (default: those detected)."
    group(parser, SECTION_TITLES["node"]).add_argument(
        "--gpu", action="append", default=[], dest="devices", metavar="NAME=MEMORY", help=about
    )
    for action in parser._actions:  # noqa: SLF001
        if action.dest == "node.web":  # without a value: at the console's own address
            action.nargs, action.const = "?", _WEB_ADDRESS
    verbs = parser.add_subparsers(metavar="COMMAND", required=False, parser_class=Parser, title="Commands about a node")
    about = "Show the state of the running node; exit code 3 if none runs."
    add_command(verbs, "status", about, _status, "directories", json=True)
    about = "Ask the running node to end, and wait until it has; its tenants continue."
    stop = add_command(verbs, "stop", about, _stop, "directories")
    stop.add_argument("--timeout", default="60s", metavar="DURATION", help="How long to wait (default 60s).")
    about = "Make the running node read its config again; an invalid config changes nothing."
    add_command(verbs, "reload", about, _reload, "directories", json=True)
    about = "Print a token with which one program may join with these properties, whatever its user's limits are."
    token = add_command(verbs, "token", about, _token, "directories", json=True)
    add_kind(token)
    add_flags(token, "run", ("priority", "slo", "memory", "share", "limit", "name", "task", "gpu"))
    about = "How long the token may be used (default 1h)."
    group(token, "Token").add_argument("--valid", default="1h", metavar="DURATION", help=about)
    for verb in verbs.choices.values():
        # Flags may also stand before the command; those that are not given must not replace them.
        for action in verb._actions:  # noqa: SLF001
            if action.dest == "config" or "." in action.dest:
                action.default = argparse.SUPPRESS


def configure_doctor(parser: Parser) -> None:
    configure(parser, _doctor, "directories", json=True)


def configure_config(parser: Parser) -> None:
    configure(parser, _config, *SECTIONS, json=True)
    about = "show: print every value and its source; check: only report errors; init: write a file with comments."
    parser.add_argument("what", choices=["show", "check", "init"], metavar="show|check|init", help=about)
    add_kind(parser)


def _node(options: argparse.Namespace) -> int:
    from cotenant.node.daemon.log import NodeLog
    from cotenant.node.daemon.main import serve_node
    from cotenant.node.daemon.service import ConfigSource

    config, directories = load(options)
    log = NodeLog(config.node.log, directories.log)
    path, _ = config_file(os.environ, os.geteuid(), options.config)
    source = ConfigSource(lambda: load(options)[0], path.absolute())
    with _web_console(config.node.web, directories):
        serve_node(config, directories, log, source)
    return 0


@contextlib.contextmanager
def _web_console(address: str, directories: Directories) -> Iterator[None]:
    """Run the web console as a process of its own while the node runs, so that pages cannot delay the node."""
    if not address:
        yield
        return
    split_address(address, "node.web")
    where = ["--runtime-dir", str(directories.runtime), "--state-dir", str(directories.state)]
    command = [sys.executable, "-m", "cotenant", "web", "--listen", address, *where, "--parent", str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _directories(options: argparse.Namespace) -> Directories:
    """Return the directories of the node that runs, even if its config file is not valid any more."""
    try:
        return find(options)[1]
    except ConfigError:
        given = {field: value for (section, field), value in given_flags(options).items() if section == "directories"}
        directories = resolve_directories(DirectoriesConfig(**given), os.environ, os.geteuid())
        if lock_holder(directories.lock) is None:
            raise
        return directories


def _status(options: argparse.Namespace) -> int:
    from cotenant.cli.render.node import show_status, status_record
    from cotenant.node.client.service import node_status

    directories = _directories(options)
    status = node_status(directories)
    if options.json:
        print_json(status_record(status, directories))
    elif status is None:
        print_line(f"no node runs at {directories.runtime}; start one with: cotenant node")
    else:
        show_status(output(), status)
    return _NOT_RUNNING if status is None else 0


def _stop(options: argparse.Namespace) -> int:
    from cotenant.node.client.service import stop_node
    from cotenant.units.text import parse_duration

    directories = _directories(options)
    timeout_ns = parse_duration(options.timeout, field="--timeout")
    is_stopped = stop_node(directories, timeout_ns, print_line)
    print_line("the node has ended" if is_stopped else f"no node runs at {directories.runtime}")
    return 0


def _reload(options: argparse.Namespace) -> int:
    from cotenant.node.client.service import reload_node

    result = reload_node(_directories(options))
    if options.json:
        print_json({"applied": result.applied, "needs_restart": result.needs_restart})
        return 0
    print_line(f"changed: {', '.join(result.applied)}" if result.applied else "nothing changed")
    if result.needs_restart:
        print_line(f"restart the node for: {', '.join(result.needs_restart)}")
    return 0


def _token(options: argparse.Namespace) -> int:
    from cotenant.node.client.connection import issue_token
    from cotenant.node.client.run import spec_of

    config, directories = find(options)
    validate_limit(config.run)
    valid_ns = parse_duration(options.valid, field="--valid")
    token = issue_token(directories, spec_of(config.run, [], config.run.gpu), valid_ns)
    if options.json:
        print_json({"token": token, "valid_ns": valid_ns})
    else:
        print(token)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from cotenant.cli.render.tenants import show_findings
    from cotenant.node.client.doctor import Level, examine

    findings = examine(find(options)[1])
    if not options.json:
        return 0 if show_findings(output(), findings) else 1
    all_findings = list(findings)
    print_json({"findings": all_findings})
    return 1 if any(finding.level is Level.BAD for finding in all_findings) else 0


def _config(options: argparse.Namespace) -> int:
    path, named = config_file(os.environ, os.geteuid(), options.config)
    if options.what == "init":
        return _write_config(path)
    config, directories = load(options)
    if options.what == "check":
        from cotenant.node.client.hami import apply_hami_limits

        validate_limit(apply_hami_limits(config.run, given_flags(options), os.environ, lambda _: None))
        print_line(f"{path}: {'valid' if named or path.exists() else 'no such file, the defaults apply'}")
        return 0
    if options.json:
        print_json(plain(config))
        return 0
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    print(f"# sockets and lock: {directories.runtime}\n# journal and log: {directories.state}\n")
    print(encode_config(config, sources(text, str(path), given_flags(options))), end="")
    return 0


def _write_config(path: Path) -> int:
    from cotenant.cli.config_file import commented_config

    if path.exists():
        raise ConfigError("--config", str(path), "it exists already and is not replaced; name another file")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, commented_config().encode(), 0o644)
    print_line(f"wrote {path}; every value in it is the default")
    return 0
