"""`cotenant load`: send an open-loop request load to an inference server."""

from __future__ import annotations

import argparse

from rich.console import Console

from cotenant.cli.command import configure, group, need_packages, output, print_json, print_line
from cotenant.cli.parser import Parser
from cotenant.cli.render.countdown import bar_of_seconds
from cotenant.units.instant import SECOND_NS
from cotenant.units.text import parse_duration


def configure_load(parser: Parser) -> None:
    parser.description = (
        "Send requests to an inference server (Open Inference Protocol) in an open loop: requests are sent at instants "
        "that do not depend on earlier responses."
    )
    configure(parser, _load, json=True)
    parser.add_argument("url", metavar="URL", help="http://HOST:PORT or grpc://HOST:PORT.")
    about = "A model, and its requests per second (default 10); may be repeated."
    parser.add_argument("--model", action="append", required=True, metavar="NAME[=RPS]", help=about)
    arrivals = group(parser, "Arrivals")
    about = "poisson (default); bursty: four times the rate for 100 ms of every 400; constant; trace: as in a file."
    kinds = ("poisson", "bursty", "constant", "trace")
    arrivals.add_argument("--arrival", default="poisson", choices=kinds, metavar="PROCESS", help=about)
    about = "Arrival times for --arrival trace (azure_llm .csv.gz or mooncake .jsonl.gz), scaled to the rate."
    arrivals.add_argument("--trace-file", dest="trace", default="", metavar="FILE", help=about)
    about = "Time during which requests are counted (default 10s)."
    arrivals.add_argument("--duration", default="10s", metavar="DURATION", help=about)
    about = "Time before that, in which requests are not counted (default 1s)."
    arrivals.add_argument("--warm-up", default="1s", metavar="DURATION", help=about)
    arrivals.add_argument("--seed", type=int, default=0, metavar="N", help="Seed of the arrival times (default 0).")
    requests = group(parser, "Requests")
    about = "Latency objective; NAME=DURATION for one model (default: none); may be repeated."
    requests.add_argument("--slo", action="append", default=[], metavar="[NAME=]DURATION", help=about)
    about = "Send the objective as the timeout of each request."
    requests.add_argument("--send-slo", dest="tell_slo", action="store_true", help=about)
    about = "Time after which a request is abandoned (default 10s)."
    requests.add_argument("--timeout", default="10s", metavar="DURATION", help=about)
    about = "Rows per request, for models that take batches (default 1)."
    requests.add_argument("--rows", type=int, default=1, metavar="N", help=about)
    about = "Shape for inputs with dynamic dimensions, with or without the batch dimension; may be repeated."
    requests.add_argument("--shape", action="append", default=[], metavar="INPUT:DIM,DIM", help=about)
    about = "Maximum connections (default 1024). An HTTP connection carries one request at a time; for gRPC 4 suffice."
    requests.add_argument("--connections", type=int, default=1024, metavar="N", help=about)


def _load(options: argparse.Namespace) -> int:
    if options.url.startswith("grpc://"):
        need_packages("load", "pip install 'cotenant[serve]'", "google.protobuf")
    from cotenant.cli.render.load import show_load
    from cotenant.serve.commands.load import LoadArguments, offer_load

    fields = {name: getattr(options, name) for name in LoadArguments.__struct_fields__ if name != "models"}
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    arguments = LoadArguments(**(fields | lists), models=tuple(options.model))
    times = parse_duration(options.warm_up, field="--warm-up"), parse_duration(options.duration, field="--duration")
    seconds, console = sum(times) / SECOND_NS, Console(stderr=True)
    with bar_of_seconds(console, "sending requests", seconds) as passed:
        is_bar = console.is_terminal
        show = passed if is_bar else lambda done_s: print_line(f"{done_s:.0f} of {seconds:.0f} s of load sent")
        report = offer_load(arguments, show)
    if options.json:
        print_json(report)
    else:
        show_load(output(), report)
    return 0 if all(model.answered + model.refused for model in report.models) else 75
