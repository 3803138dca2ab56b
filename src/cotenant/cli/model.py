"""Functions of commands about models: import them, correct a GPU's factors, and play a stored stream."""

from __future__ import annotations

import argparse

from cotenant.cli.command import configure, group, load_own, output, print_json, print_line, whole_number
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError, SetupError
from cotenant.profile.commands import write_file
from cotenant.profile.estimate.commands import (
    ModelRequest,
    import_model,
    learn_corrections,
    parse_batches,
    parse_dimensions,
    parse_precision,
    playable_launches,
    stream_directory,
)
from cotenant.profile.estimate.corrections import write_correction
from cotenant.profile.estimate.devices import find_gpu
from cotenant.profile.estimate.duration import Correction
from cotenant.profile.estimate.stored import find_stream
from cotenant.profile.estimate.stream import StreamOptions
from cotenant.profile.store import open_store
from cotenant.runner.clock import unix_ns
from cotenant.units.text import parse_duration


def stream_options(options: argparse.Namespace) -> StreamOptions:
    """Return how a model runs, from the flags."""
    host_ns = parse_duration(options.host_time, field="--host-time") if options.host_time else 0
    return StreamOptions(
        mode="fused" if options.mode == "fused" else "eager",
        precision=parse_precision(options.precision),
        train=options.train,
        graph=options.graph,
        host_ns=float(host_ns),
    )


def import_models(options: argparse.Namespace) -> int:
    """Estimate and store the streams of models."""
    from cotenant.cli.render.model import imported_json, show_imported

    if not options.gpu:
        raise ConfigError("--gpu", "", "name the GPU on which the model runs, as in --gpu a100")
    if options.task and len(options.files) > 1:
        raise ConfigError("--task", options.task, f"{len(options.files)} models cannot have one name")
    directories = load_own(options)
    store = open_store(directories, print_line)
    imported = []
    for source in options.files:
        request = ModelRequest(
            source=source,
            gpu=find_gpu(options.gpu),
            batches=parse_batches(options.batch),
            options=stream_options(options),
            dimensions=parse_dimensions(options.dim),
            name=options.task,
        )
        imported += import_model(request, store, directories.state, unix_ns(), print_line)
    if (options.image or options.script) and len(imported) != 1:
        raise ConfigError("--image", options.image or options.script, "needs one model and one batch size")
    if options.image or options.script:
        from pathlib import Path

        stream = find_stream(
            *(stream_directory(directories.state), imported[0].task, imported[0].stream.gpu.key),
            *(imported[0].stream.batch,),
            train=options.train,
        )
        for path, text in ((options.image, stream.image), (options.script, stream.script)):
            if path:
                write_file(Path(path), text.encode())
    if options.json:
        print_json({"imported": [imported_json(new) for new in imported]})
    else:
        show_imported(output(), imported)
    return 0


def correct_gpu(options: argparse.Namespace) -> int:
    """Learn or remove the correction factors of a GPU."""
    from cotenant.cli.render.model import show_correction

    if not options.gpu:
        raise ConfigError("--gpu", "", "name the GPU that was measured, as in --gpu a100")
    gpu = find_gpu(options.gpu)
    state = load_own(options).state
    if options.forget == bool(options.measurements):
        raise ConfigError("MEASUREMENT", " ".join(options.measurements), "give measurements, or --forget; not both")
    if options.forget:
        write_correction(state / "corrections.json", gpu.key, None)
        print_line(f"{gpu.name}: estimates are uncorrected again")
        return 0
    request = ModelRequest(
        source="", gpu=gpu, options=stream_options(options), dimensions=parse_dimensions(options.dim)
    )
    factors, rows = learn_corrections(options.measurements, request, state, print_line)
    if options.json:
        print_json({"gpu": gpu.key, "correction": _factors(factors), "rows": rows})
    else:
        show_correction(output(), gpu.name, factors, rows)
    return 0


def _factors(factors: Correction) -> dict[str, float]:
    return {name: getattr(factors, name) for name in ("arithmetic", "memory", "host", "measurements")}


def configure_play(parser: Parser) -> None:
    """Add the flags of `cotenant play`."""
    configure(parser, _play, "directories", json=True)
    parser.add_argument("model", metavar="MODEL", help="Name of an imported model, or its task such as resnet50:b8.")
    load = group(parser, "Load")
    about = "Requests per second at random instants (default: one after the other)."
    load.add_argument("--rate", type=float, default=0.0, metavar="N", help=about)
    load.add_argument("--seconds", type=float, default=10.0, metavar="N", help="Duration (default 10).")
    load.add_argument("--requests", default="0", metavar="N", help="End after this many requests.")
    load.add_argument("--seed", type=int, default=0, metavar="N", help="Seed of the instants (default 0).")
    about = "Which of several imported batch sizes (default: the smallest)."
    load.add_argument("--batch", default="", metavar="N", help=about)
    load.add_argument("--train", action="store_true", help="Play training steps, one after the other.")
    load.add_argument("--for-gpu", default="", metavar="KEY", help="GPU of the import, if there are several.")
    load.add_argument("--priority", type=int, default=0, metavar="N", help="Stream priority; lower values go first.")
    about = "Do not allocate the model's memory on the device."
    load.add_argument("--no-memory", action="store_true", help=about)


def _play(options: argparse.Namespace) -> int:
    from cotenant.cli.render.model import show_played
    from cotenant.workload.launch_files import image_text, script_text
    from cotenant.workload.player import PlaySchedule, play_script

    if not 0 <= options.rate < 1e6 or not 0 < options.seconds < 1e7:
        raise ConfigError("--rate", options.rate, "choose a rate of 0 or more, and --seconds of more than 0")
    directories = load_own(options)
    batch = whole_number("--batch", options.batch) if options.batch else None
    key = find_gpu(options.for_gpu, "--for-gpu").key if options.for_gpu else ""
    stream = find_stream(
        stream_directory(directories.state), options.model, key, batch, train=True if options.train else None
    )
    launches, measured = playable_launches(stream, open_store(directories, print_line))
    origin = "measured kernel times" if measured else "estimated kernel times"
    print_line(f"{stream.task} for {stream.gpu}: {len(launches)} launches per request, {origin}")
    schedule = PlaySchedule(
        rate_per_s=options.rate,
        seconds=options.seconds,
        requests=whole_number("--requests", options.requests),
        seed=options.seed,
        priority=options.priority,
        graph=stream.graph,
        memory_bytes=0 if options.no_memory else stream.memory_bytes,
        tell=not stream.train,
    )
    script, image = (stream.script, stream.image)
    if measured:
        script, image = script_text(stream.task, launches), image_text(launches)
    try:
        summary = play_script(script, image, schedule)
    except (OSError, ValueError) as error:
        raise SetupError(
            f"{error}; start a software GPU and run: cotenant run --gpu soft:0 -- cotenant play ..."
        ) from None
    if options.json:
        print_json(summary)
    else:
        show_played(output(), stream.task, summary)
    return 0
