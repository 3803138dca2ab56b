"""Commands about the node's journal: events and explain."""

from __future__ import annotations

import argparse

from cotenant.cli.command import configure, find, group, output, print_json, print_line
from cotenant.cli.kubernetes import add_namespace, show_pod_explanation
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError
from cotenant.units.text import parse_duration


def configure_events(parser: Parser) -> None:
    configure(parser, _events, "directories")
    selection = group(parser, "Selection")
    about = "Only events of the last DURATION, such as 10min."
    selection.add_argument("--since", default="", metavar="DURATION", help=about)
    selection.add_argument("--tenant", default="", metavar="NAME", help="Only events about this tenant.")
    selection.add_argument("--gpu", default=None, metavar="N", help="Only events about the GPU with this number.")
    format_group = group(parser, "Output")
    format_group.add_argument("-f", "--follow", action="store_true", help="Wait for further events, until interrupted.")
    format_group.add_argument("--json", action="store_true", help="Print each event as one line of JSON.")


def configure_explain(parser: Parser) -> None:
    configure(parser, _explain, "directories", json=True)
    about = "The tenant; also one that has left or was refused. Or `pod NAME`: a pod of a Kubernetes cluster."
    parser.add_argument("names", nargs="+", metavar="NAME", help=about)
    add_namespace(parser)


def _events(options: argparse.Namespace) -> int:
    from cotenant.node.client.events import EventFilter, event_json, event_line, read_events

    gpu = options.gpu
    if gpu is not None and not (gpu.isascii() and gpu.isdigit()):
        raise ConfigError("--gpu", gpu, "write the number of a GPU, such as 0; see: cotenant ps")
    since = parse_duration(options.since, field="--since") if options.since else None
    event_filter = EventFilter(options.tenant, None if gpu is None else int(gpu), since)
    try:
        for event in read_events(find(options)[1], event_filter, print_line, follow=options.follow):
            if options.json:
                print_json(event_json(event))
            else:
                print(event_line(event), flush=options.follow)
    except KeyboardInterrupt:
        if not options.follow:
            raise
    return 0


def _explain(options: argparse.Namespace) -> int:
    if len(options.names) > 1:
        if options.names[0] != "pod" or len(options.names) > 2:
            raise ConfigError("NAME", " ".join(options.names), "write the name of a tenant, or: pod NAME")
        return show_pod_explanation(options, options.names[1])
    from cotenant.cli.render.explain import show_explanation
    from cotenant.node.client.explain import explain, explanation_json

    explanation = explain(find(options)[1], options.names[0], print_line)
    if options.json:
        print_json(explanation_json(explanation))
    else:
        show_explanation(output(), explanation)
    return 0
