"""Commands about this machine's node: node, doctor and config."""

from __future__ import annotations

import argparse
import os

from cotenant.cli.command import configure, find, given_flags, group, load, output, print_json, print_line
from cotenant.cli.flags import SECTION_TITLES, SECTIONS, sources
from cotenant.cli.parser import Parser
from cotenant.cli.tenant import add_kind
from cotenant.node.config.file import encode_config, plain, validate_limit
from cotenant.node.directories import config_file


def configure_node(parser: Parser) -> None:
    configure(parser, _node, "node", "protect", "control", "agent", "directories")
    about = "A GPU to share; repeat it for more, in the order of their numbers; none: no GPU (default: those detected)."
    group(parser, SECTION_TITLES["node"]).add_argument(
        "--gpu", action="append", default=[], dest="devices", metavar="NAME=MEMORY", help=about
    )


def configure_doctor(parser: Parser) -> None:
    configure(parser, _doctor, "directories", json=True)


def configure_config(parser: Parser) -> None:
    configure(parser, _config, *SECTIONS, json=True)
    about = "show: print every value and its source; check: only report errors."
    parser.add_argument("what", choices=["show", "check"], metavar="show|check", help=about)
    add_kind(parser)


def _node(options: argparse.Namespace) -> int:
    from cotenant.node.daemon.cluster_agent import running_agent
    from cotenant.node.daemon.log import NodeLog
    from cotenant.node.daemon.main import serve_node

    config, directories = load(options)
    log = NodeLog(config.node.log, directories.log)
    with running_agent(config.agent, directories, options.config, log.report):
        serve_node(config, directories, log)
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
    print(f"# socket, lock and pages: {directories.runtime}\n# journal and log: {directories.state}\n")
    print(encode_config(config, sources(text, str(path), given_flags(options))), end="")
    return 0
