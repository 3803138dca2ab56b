"""`cotenant load`: put a server of models under load."""

from __future__ import annotations

import argparse
from typing import Any

from cotenant.cli.command import add_command, print_json, say


def add_commands(commands: Any) -> None:
    about = "Send requests to a server at instants that do not wait for its answers (Open Inference Protocol)."
    load = add_command(commands, "load", about, _load, json=True)
    load.add_argument("url", metavar="URL", help="http://HOST:PORT or grpc://HOST:PORT")
    load.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME[=RPS]",
        help="requests per second for a model (default 10); may be repeated",
    )
    arrival = "poisson (default); bursty: four times as dense for 100 ms of every 400; constant; trace: as recorded"
    load.add_argument("--arrival", default="poisson", choices=("poisson", "bursty", "constant", "trace"), help=arrival)
    trace = "for --arrival trace: azure_llm's .csv.gz or mooncake's .jsonl.gz, its time stretched to the rate"
    load.add_argument("--trace", default="", metavar="FILE", help=trace)
    load.add_argument("--duration", default="10s", metavar="TIME", help="for which requests count (default 10s)")
    load.add_argument("--warm-up", default="1s", metavar="TIME", help="before that, uncounted (default 1s)")
    slo = "what counts as in time (default: any answer); NAME=TIME for one model; may be repeated"
    load.add_argument("--slo", action="append", default=[], metavar="[NAME=]TIME", help=slo)
    load.add_argument("--tell-slo", action="store_true", help="send the objective along as each request's timeout")
    load.add_argument(
        "--timeout", default="10s", metavar="TIME", help="after which a request is given up (default 10s)"
    )
    load.add_argument("--rows", type=int, default=1, help="of a request, where a model takes batches (default 1)")
    shape = "for inputs with free dimensions, the first left out or not; may be repeated"
    load.add_argument("--shape", action="append", default=[], metavar="INPUT:DIM,DIM", help=shape)
    connections = "at most, over HTTP each carries one request at a time (default 1024); over gRPC 4 are enough"
    load.add_argument("--connections", type=int, default=1024, help=connections)
    load.add_argument("--seed", type=int, default=0, help="of the instants (default 0)")


def _load(options: argparse.Namespace) -> int:
    if options.url.startswith("grpc://"):
        from cotenant.apps.needs import need_packages

        need_packages("load", "pip install 'cotenant[serve]'", "google.protobuf")
    from rich.console import Console

    from cotenant.apps.load import LoadArguments, offer_load
    from cotenant.apps.show_load import show_load

    fields = {name: getattr(options, name) for name in LoadArguments.__struct_fields__ if name != "models"}
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    given = LoadArguments(**(fields | lists), models=tuple(options.model))
    found = offer_load(given, lambda seconds: say(f"{seconds:.0f} s of load"))
    if options.json:
        print_json(found)
    else:
        show_load(Console(), found)
    return 0 if all(one.answered + one.refused for one in found.models) else 75
