"""`cotenant serve`: many models from one machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from cotenant.cli.command import add_command, find, load, print_json, say
from cotenant.cli.serve_flags import MODELS, add_runtime_flags


def add_commands(commands: Any) -> None:
    serve = add_command(
        commands,
        "serve",
        "Serve models over HTTP and gRPC (Open Inference Protocol).",
        _serve,
        json=True,
    )
    serve.epilog = "Before: cotenant serve profile MODELS. What it intends: cotenant serve plan."
    serve.add_argument("models", nargs="+", metavar="MODELS", help=MODELS)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        about = f"port for {name} (default {port}; 0: one that is free; -1: none)"
        serve.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT", help=about)
    add_runtime_flags(serve)
    policies = "dstack (default), fifo, temporal, fixed, triton, clipper, nexus or gslice"
    serve.add_argument("--policy", default="dstack", help=f"who runs when: {policies}")
    serve.add_argument("--admit", default="deadline", help="who is taken: deadline (default) or anyone")
    serve.add_argument("--queue", type=int, default=8192, help="requests that may wait, over all models (default 8192)")
    serve.add_argument("--body", default="256MiB", metavar="SIZE", help="largest request (default 256MiB)")
    held = "tensors of all requests under way (default 1GiB)"
    serve.add_argument("--memory", default="1GiB", metavar="SIZE", help=held)
    serve.add_argument("--connections", type=int, default=4096, help="clients at once, of each door (default 4096)")
    serve.add_argument("--drain", default="30s", metavar="TIME", help="for requests under way at the end (default 30s)")
    serve.add_argument("--tls-cert", default="", metavar="FILE", help="encrypt every door, by this certificate (PEM)")
    serve.add_argument("--tls-key", default="", metavar="FILE", help="the certificate's key (PEM)")
    signed = "let only clients in with a certificate that one of these authorities signed (PEM)"
    serve.add_argument("--tls-clients", default="", metavar="FILE", help=signed)
    traced = "requests for `cotenant trace`: asked (default: while it looks), always (also for --last) or off"
    serve.add_argument("--trace", default="asked", help=traced)
    about = "say what of a Triton repository is done in another way, or not at all, and stop"
    serve.add_argument("--import", dest="compare", action="store_true", help=about)


def _serve(options: argparse.Namespace) -> int:
    from cotenant.apps.needs import need_packages

    need_packages("serve", "pip install 'cotenant[serve]'", "google.protobuf", "onnxruntime")
    from cotenant.apps.serve import ServeArguments, differences, run_server

    if options.compare:
        found = differences(options.models)
        if options.json:
            print_json(found)
        else:
            for name, lines in found.items():
                print(f"{name}: {'nothing differs' if not lines else ''}".rstrip())
                for line in lines:
                    print(f"  {line}")
        return 0
    fields = ServeArguments.__struct_fields__
    given = {name: getattr(options, name) for name in fields} | {"models": tuple(options.models)}

    def show(ports: Any, models: Sequence[str]) -> None:
        if options.json:
            print_json({"http": ports.http, "grpc": ports.grpc, "metrics": ports.metrics, "models": list(models)})
            return
        doors = [f"{name} {options.host}:{port}" for name, port in ports._asdict().items() if port >= 0]
        say(f"ready: {', '.join(models) or 'no models'} at {', '.join(doors)}")

    return run_server(ServeArguments(**given), find(options)[1], load(options)[1], say, show)
