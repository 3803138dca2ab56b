"""The command `cotenant whatif`: which models can share a GPU within their objectives, and how many GPUs they need."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from cotenant.cli.command import OUTPUT, configure, group, load_own, output, print_json, print_line
from cotenant.cli.model_flags import MODELS
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError
from cotenant.units.text import parse_duration

_ONLINE_KEYS = ("rate", "slo")
_KEYS = (*_ONLINE_KEYS, "batch", "mode", "precision", "graph", "name", "train")
_SIZE = "dim."
"""What the name of a setting begins with that is a size of this model."""


def configure_whatif(parser: Parser) -> None:
    """Add the flags of `cotenant whatif`."""
    configure(parser, _whatif, "directories", json=True)
    tenants = group(parser, "Tenants")
    about = (
        "An online tenant: FILE.onnx, FILE.py or a task of the profile store, then :rate=PER_SECOND,slo=DURATION, and "
        "optionally batch=N, mode=fused, precision=NAME, graph=1, name=NAME, dim.SIZE=N; repeatable."
    )
    tenants.add_argument("--online", action="append", default=[], metavar="MODEL:...", help=about)
    about = "An offline tenant: a model as above; it trains unless train=0 is given; repeatable."
    tenants.add_argument("--offline", action="append", default=[], metavar="MODEL[:...]", help=about)
    models = group(parser, MODELS)
    models.add_argument("--gpu", default="", metavar="KEY", help="GPU, such as v100, a100, h100, t4, l4 or p100.")
    about = "Size of a dimension that the models leave open, such as sequence=128; repeatable."
    models.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help=about)
    about = "Host time of one operator or launch (default 9us eager, 3us fused)."
    models.add_argument("--host-time", default="", metavar="DURATION", help=about)
    about = "Simulated seconds (default: as many as 250,000 launches take, up to 60)."
    models.add_argument("--seconds", type=float, default=0.0, metavar="N", help=about)
    models.add_argument("--seed", type=int, default=0, metavar="N", help="Seed of arrivals and host jitter.")
    about = "Write an HTML page with the curves to this file."
    group(parser, OUTPUT).add_argument("--html", default="", metavar="FILE", help=about)


def _whatif(options: argparse.Namespace) -> int:
    from cotenant.cli.render.countdown import bar_of_steps
    from cotenant.cli.render.html.page import check_report, write_report
    from cotenant.cli.render.html.whatif import whatif_page
    from cotenant.cli.render.whatif import show_whatif
    from cotenant.profile.estimate.commands import parse_dimensions
    from cotenant.profile.estimate.devices import find_gpu
    from cotenant.profile.store import open_store
    from cotenant.runner.machine import read_machine
    from cotenant.simulate.whatif import answer
    from cotenant.simulate.whatif_models import TenantRequest, whatif_tenant

    if not options.gpu:
        raise ConfigError("--gpu", "", "name the GPU to share, as in --gpu a100")
    if not 0 <= options.seconds <= 3600:
        raise ConfigError("--seconds", options.seconds, "choose up to 3600 simulated seconds")
    machine = read_machine()
    directories = load_own(options)
    gpu = find_gpu(options.gpu)
    store = open_store(directories, print_line)
    host_ns = parse_duration(options.host_time, field="--host-time") if options.host_time else 0
    dimensions = parse_dimensions(options.dim)
    tenants = []
    for flag, words in (("--online", options.online), ("--offline", options.offline)):
        for word in words:
            source, fields = parse_tenant(flag, word)
            sizes = [f"{name.removeprefix(_SIZE)}={size}" for name, size in fields.items() if name.startswith(_SIZE)]
            request = TenantRequest(
                source=source,
                fields=fields,
                flag=flag,
                gpu=gpu,
                dimensions=dimensions | parse_dimensions(sizes),
                host_ns=float(host_ns),
            )
            tenants.append(whatif_tenant(request, store, directories.state, print_line))
    if options.html:
        check_report("--html", options.html)
    with bar_of_steps(Console(stderr=True), print_line) as progress:
        report = answer(tenants, gpu, options.seed, os.cpu_count() or 1, progress, options.seconds)
    if options.html:
        write_report("--html", Path(options.html), whatif_page(report, machine))
        print_line(f"written: {options.html}")
    if options.json:
        print_json(report)
    else:
        show_whatif(output(), report)
    return 0


def parse_tenant(flag: str, word: str) -> tuple[str, dict[str, str]]:
    """Return the model and the settings of a word such as bert.onnx:rate=20,slo=50ms."""
    source, colon, settings = word.rpartition(":")
    if not colon or "=" not in settings:
        source, settings = word, ""
    fields: dict[str, str] = {}
    for part in settings.split(",") if settings else ():
        name, equals, value = part.partition("=")
        if not equals or not (name in _KEYS or name.startswith(_SIZE)) or not value:
            names = ", ".join([*_KEYS, f"{_SIZE}SIZE"])
            raise ConfigError(flag, word, f"write MODEL:NAME=VALUE,... with names among {names}")
        fields[name] = value
    if flag == "--offline" and (wrong := [name for name in _ONLINE_KEYS if name in fields]):
        raise ConfigError(flag, word, f"an offline tenant has no {' and no '.join(wrong)}; use --online for a service")
    if flag == "--online" and not {"rate", "slo"} <= set(fields):
        raise ConfigError(flag, word, "an online tenant needs rate and slo, as in bert.onnx:rate=20,slo=50ms")
    if not source:
        raise ConfigError(flag, word, "name a model before the settings, as in bert.onnx:rate=20,slo=50ms")
    return source, fields
