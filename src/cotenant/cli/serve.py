"""`cotenant serve`: run an inference server, profile models, and plan their schedule."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console

from cotenant.cli.command import (
    OUTPUT,
    add_command,
    add_verbs,
    find,
    group,
    load,
    need_packages,
    output,
    print_json,
    print_line,
)
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError

_MODELS: Final = "Folder of .onnx files, Triton model repository, or .onnx, .py or .replay.toml file."
_LIST: Final = "list"
"""The value of --policy that prints the installed policies."""


def configure_serve(parser: Parser) -> None:
    verbs = add_verbs(parser)
    _add_run(verbs)
    _add_profile(verbs)
    _add_plan(verbs)
    parser.epilog = "Example: cotenant serve profile models/ && cotenant serve run models/"


def _add_run(verbs: Any) -> None:
    about = "Serve models over HTTP and gRPC with the Open Inference Protocol."
    run = add_command(verbs, "run", about, _run, "directories", json=True)
    run.add_argument("models", nargs="*", metavar="MODELS", help=_MODELS)
    about = "Compare a Triton repository with the features that cotenant supports, print the differences, and exit."
    run.add_argument("--check", action="store_true", help=about)
    network = group(run, "Network")
    network.add_argument("--host", default="127.0.0.1", help="Address to listen on (default 127.0.0.1).")
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        about = f"Port for {name} (default {port}); 0: any free port; -1: none."
        network.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT", help=about)
    about = "Connections of all clients (default 4096); at the limit, idle ones are closed."
    network.add_argument("--connections", type=int, default=4096, metavar="N", help=about)
    about = "Connections of one client address (default 2048)."
    network.add_argument("--client-connections", type=int, default=2048, metavar="N", help=about)
    about = "Close a connection after this time without a request (default 5min)."
    network.add_argument("--idle-timeout", default="5min", metavar="DURATION", help=about)
    network.add_argument("--tls-cert", default="", metavar="FILE", help="Use TLS with this certificate (PEM).")
    network.add_argument("--tls-key", default="", metavar="FILE", help="Private key of the certificate (PEM).")
    about = "Require client certificates signed by one of these authorities (PEM)."
    network.add_argument("--tls-clients", default="", metavar="FILE", help=about)
    about = "Require the token in this file from clients, as `Authorization: Bearer TOKEN`."
    network.add_argument("--token-file", default="", metavar="FILE", help=about)
    about = "Accept requests of web pages at this origin, such as https://example.org (default: none); may be repeated."
    network.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN", help=about)
    _add_admin_flags(run)
    _add_runtime_flags(run)
    requests = group(run, "Scheduling and limits")
    about = f"Scheduling policy (default dstack); `{_LIST}` prints the installed policies."
    requests.add_argument("--policy", default="dstack", metavar="NAME", help=about)
    about = "deadline (default) refuses requests that would miss their objective; accept-all admits all."
    requests.add_argument("--admit", default="deadline", metavar="ADMIT", help=about)
    about = "Requests that may wait, over all models (default 8192)."
    requests.add_argument("--queue", type=int, default=8192, metavar="N", help=about)
    requests.add_argument("--body", default="256MiB", metavar="SIZE", help="Largest request body (default 256MiB).")
    about = "Memory for the tensors of all admitted requests (default 1GiB)."
    requests.add_argument("--request-memory", dest="memory", default="1GiB", metavar="SIZE", help=about)
    about = "Time to finish admitted requests on shutdown (default 30s)."
    requests.add_argument("--drain", default="30s", metavar="DURATION", help=about)
    about = "Record requests for `cotenant trace`: asked (default; while it runs), always (also for --last) or off."
    requests.add_argument("--trace", default="asked", metavar="WHEN", help=about)
    about = "Append a line of JSON for each request to this file; `-`: to standard error (default: no access log)."
    requests.add_argument("--access-log", default="", metavar="FILE", help=about)


def _add_admin_flags(run: Parser) -> None:
    control = group(run, "Model control")
    about = "none (default): models are those at the start; explicit: the admin listener loads and unloads models; "
    about += "poll: changes of the files are loaded."
    control.add_argument("--model-control", default="none", metavar="MODE", help=about)
    about = "Interval at which files are checked with `--model-control poll` (default 5s)."
    control.add_argument("--poll-interval", default="5s", metavar="DURATION", help=about)
    about = "Address of the admin listener (default 127.0.0.1)."
    control.add_argument("--admin-host", default="127.0.0.1", metavar="HOST", help=about)
    about = "Port of the admin listener, for HTTP and gRPC (default 8003 with `--model-control explicit`, else none)."
    control.add_argument("--admin-port", type=int, default=None, metavar="PORT", help=about)
    about = "File with the token of the admin listener (default: created in the state directory)."
    control.add_argument("--admin-token-file", default="", metavar="FILE", help=about)
    about = "Require client certificates of these authorities (PEM) on the admin listener, instead of a token."
    control.add_argument("--admin-tls-clients", default="", metavar="FILE", help=about)


def _add_profile(verbs: Any) -> None:
    about = "Measure the run time of models by batch size and by cores or share of the GPU."
    profile = add_command(verbs, "profile", about, _profile, "directories", json=True)
    profile.add_argument("models", nargs="+", metavar="MODELS", help=_MODELS)
    measurement = group(profile, "Measurement")
    about = "Time to measure each model (default 20s)."
    measurement.add_argument("--budget", default="20s", metavar="DURATION", help=about)
    about = "Shape of one row for inputs with dynamic dimensions (default: 64 for each dimension); may be repeated."
    measurement.add_argument("--shape", action="append", default=[], metavar="[MODEL=]INPUT:DIM,DIM", help=about)
    about = "Also measure models that already have a profile."
    measurement.add_argument("--force", dest="again", action="store_true", help=about)
    about = "Also draw the run times into this .svg or .html file."
    group(profile, OUTPUT).add_argument("--plot", default="", metavar="FILE", help=about)
    _add_runtime_flags(profile)


def _add_plan(verbs: Any) -> None:
    about = "Show the schedule of a server: batch size, cores and runs of each model, and the reasons."
    plan = add_command(verbs, "plan", about, _plan, "directories", json=True)
    plan.add_argument("models", nargs="*", metavar="MODELS", help=f"{_MODELS} Each must have a profile.")
    about = "Show the plan of the running server at this address, such as http://127.0.0.1:8000."
    plan.add_argument("--url", default="", help=about)
    about = "Rows per second of a model (default: equal parts of most of the device); may be repeated."
    plan.add_argument("--rate", action="append", default=[], metavar="NAME=RPS", help=about)
    about = "Also show the plan after a change: MODEL.slo=50ms, MODEL.rate=200, units=4 or without=MODEL; repeatable."
    plan.add_argument("--what-if", action="append", default=[], metavar="CHANGE", help=about)
    _add_runtime_flags(plan)


def _add_runtime_flags(parser: Parser) -> None:
    """Add the flags that select the runtime and the device of models."""
    runtime = group(parser, "Model runtime")
    about = "Runtime of the models: onnx-cpu (default), onnx-cuda or replay."
    runtime.add_argument("--runtime", default="onnx-cpu", metavar="NAME", help=about)
    about = "CPU cores that models run on (default 0: all)."
    runtime.add_argument("--cores", type=int, default=0, metavar="N", help=about)
    runtime.add_argument("--gpu", default="", metavar="GPU", help="soft:N for a software GPU, N for a real one.")
    about = "Register GPU workers as tenants of the node: auto (default; if a node runs), yes or no."
    runtime.add_argument("--tenants", default="auto", metavar="WHEN", help=about)
    about = "Worker processes on the GPU at the same time (default 44)."
    runtime.add_argument("--workers", type=int, default=44, metavar="N", help=about)
    about = "Time after which a run is abandoned (default 30s on a GPU, 5min on cores)."
    runtime.add_argument("--run-limit", default="", metavar="DURATION", help=about)
    about = "Folder of model profiles (default: below the state directory)."
    runtime.add_argument("--profiles", default="", metavar="DIR", help=about)


def _need_serve_packages() -> None:
    need_packages("serve", "pip install 'cotenant[serve]'", "google.protobuf", "onnxruntime")


def _run(options: argparse.Namespace) -> int:
    if options.policy == _LIST:
        from cotenant.serve.policy import policy_names

        print("\n".join(policy_names()))
        return 0
    if not options.models:
        raise ConfigError("MODELS", "", "name a folder or file of models, as in: cotenant serve run models/")
    _need_serve_packages()
    from cotenant.serve.commands.run import ServeArguments, differences, run_server

    if options.check:
        models = differences(options.models)
        if options.json:
            print_json(models)
        else:
            for name, lines in models.items():
                print(f"{name}: {'no differences' if not lines else ''}".rstrip())
                for line in lines:
                    print(f"  {line}")
        return 0
    fields = ServeArguments.__struct_fields__
    values = {name: getattr(options, name) for name in fields}
    values |= {"models": tuple(options.models), "allow_origin": tuple(options.allow_origin)}

    def show(ports: Any, models: Sequence[str]) -> None:
        if options.json:
            print_json({**ports._asdict(), "models": list(models)})
            return
        hosts = {"admin": options.admin_host}
        addresses = [
            f"{name} {hosts.get(name, options.host)}:{port}" for name, port in ports._asdict().items() if port >= 0
        ]
        print_line(f"ready: {', '.join(models) or 'no models'} at {', '.join(addresses)}")

    return run_server(ServeArguments(**values), find(options)[1], load(options)[1], print_line, show)


def _profile(options: argparse.Namespace) -> int:
    _need_serve_packages()
    from cotenant.cli.render.html.serve_profile import plotter
    from cotenant.cli.render.serve_profile import measuring, profiles_json, show_profiles
    from cotenant.serve.commands.profile import ProfileArguments, profile_models

    values = {name: getattr(options, name) for name in ProfileArguments.__struct_fields__}
    values |= {"models": tuple(options.models), "shape": tuple(options.shape)}
    draw = plotter(options.plot) if options.plot else None
    with measuring(Console(stderr=True), print_line) as progress:
        outcomes = profile_models(ProfileArguments(**values), find(options)[1], load(options)[1], print_line, progress)
    if draw is not None:
        draw(outcomes)
        print_line(f"written: {options.plot}")
    if options.json:
        print_json(profiles_json(outcomes))
    else:
        show_profiles(output(), outcomes)
    return 0 if any(outcome.profiled is not None for outcome in outcomes) else 1


def _plan(options: argparse.Namespace) -> int:
    if options.url:
        if options.models or options.rate or options.what_if:
            raise ConfigError("--url", options.url, "is for a running server: omit MODELS, --rate and --what-if")
        from cotenant.cli.render.serve_plan import show_running
        from cotenant.serve.commands.plan import running_plan

        running = running_plan(options.url)
        if options.json:
            print_json(running)
        else:
            show_running(output(), running, options.url)
        return 0
    if not options.models:
        raise ConfigError("MODELS", "", "name models that have a profile, or a running server with --url")
    for model in options.models:
        if "://" in model:
            raise ConfigError("MODELS", model, f"a running server is named with --url {model}")
    _need_serve_packages()
    from cotenant.cli.render.serve_plan import planned_json, show_planned
    from cotenant.serve.commands.plan import PlanArguments, plan_models

    values = {name: getattr(options, name) for name in PlanArguments.__struct_fields__}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    planned = plan_models(PlanArguments(**(values | lists)), find(options)[1], load(options)[1], print_line)
    if options.json:
        print_json(planned_json(planned))
    else:
        show_planned(output(), planned, ", ".join(options.what_if))
    return 0 if planned.now.plan.models else 1
