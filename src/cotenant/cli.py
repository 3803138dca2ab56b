"""The command line: arguments to config, and the app they name."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rich.console import Console

from cotenant import __version__
from cotenant.domain.tenant import Kind
from cotenant.errors import ConfigError, CotenantError
from cotenant.format.config import Config, encode_config, plain, validate
from cotenant.format.flags import FieldName, flags_of, overlay, sources
from cotenant.live.directory import Places, config_file, door_to_use, load_config, places


class _Parser(argparse.ArgumentParser):
    """Bad arguments get one sentence, not a page of usage; a flag is written out, or abbreviations become interface."""

    def __init__(self, **given: Any) -> None:
        """As the base class, for the parsers of commands too."""
        super().__init__(**{"allow_abbrev": False, **given})

    def error(self, message: str) -> NoReturn:
        """One sentence and where to read more."""
        self.exit(2, f"cotenant: {message}; see `{self.prog} --help`\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words)
    try:
        code: int = options.command(options)
    except CotenantError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough; do not let Python complain about it on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _say(text: str) -> None:
    print(f"cotenant: {text}", file=sys.stderr, flush=True)


def _print_json(value: Any) -> None:
    print(msgspec.json.encode(value, enc_hook=str).decode(), flush=True)


def _parser() -> _Parser:
    parser = _Parser(
        prog="cotenant",
        description="Deep-learning workloads share a GPU without hurting each other.",
        epilog="Try it: cotenant demo. See who shares: cotenant ps. Something odd: cotenant doctor.",
    )
    parser.add_argument("--version", action="version", version=f"cotenant {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_node_commands(commands)
    _add_softgpu_commands(commands)
    _add_study_commands(commands)
    return parser


def _add(
    commands: Any, name: str, about: str, run: Callable[[argparse.Namespace], int], *sections: str, json: bool = False
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(command=run)
    if sections:
        parser.add_argument("--config", default="", metavar="FILE", help="config file instead of the usual one")
    for section in sections:
        for flag in flags_of(section):
            about_flag = flag.about.replace("%", "%%")
            parser.add_argument(
                flag.option, dest=".".join(flag.field), default=None, metavar=flag.metavar, help=about_flag
            )
    if json:
        parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser


def _add_node_commands(commands: Any) -> None:
    node = _add(
        commands, "node", "Be this machine's node: the daemon that tenants register with.", _node, "directories", "node"
    )
    node.add_argument(
        "--gpu",
        action="append",
        default=[],
        dest="devices",
        metavar="NAME=MEMORY",
        help="a GPU to share; may be repeated",
    )
    run = _add(commands, "run", "Run a program as a tenant.", _run, "directories", "run")
    kind = run.add_mutually_exclusive_group()
    for word in Kind:
        about = "it has a latency objective" if word is Kind.ONLINE else "it takes what is left (default)"
        kind.add_argument(f"--{word.value}", dest="run.kind", action="store_const", const=word.value, help=about)
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")
    ps = _add(commands, "ps", "Who shares this machine's GPUs?", _ps, "directories", json=True)
    ps.add_argument("--all", action="store_true", help="also those who left, and how they ended")
    _add(commands, "doctor", "Is this machine ready, and if not, what to do?", _doctor, "directories", json=True)
    _add(commands, "terms", "Inside a tenant: what may I do?", _terms, json=True)
    config = _add(
        commands, "config", "Show or check the configuration.", _config, "directories", "node", "run", json=True
    )
    config.add_argument("what", choices=["show", "check"], help="show: every value and its source; check: read it only")
    config.add_argument("--online", dest="run.kind", action="store_const", const="online", help="as in `run`")
    config.add_argument("--offline", dest="run.kind", action="store_const", const="offline", help="as in `run`")


def _add_softgpu_commands(commands: Any) -> None:
    about = "Software GPUs: real time, real libcuda face, no hardware."
    parser: argparse.ArgumentParser = commands.add_parser("softgpu", help=about, description=about)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    create = _add(verbs, "create", "Start software GPUs on this machine.", _softgpu_create, "directories", json=True)
    create.add_argument("--gpu", default="v100", metavar="MODEL", help="t4, v100, v100-32, a100, a100-80 or h100")
    create.add_argument("--count", default="1", metavar="N", help="how many (default 1)")
    create.add_argument("--memory", default=None, metavar="SIZE", help="device memory instead of the model's own")
    create.add_argument("--slice", default=None, metavar="DURATION", help="time slice between processes (default 2ms)")
    _add(verbs, "list", "Which software GPUs are there?", _softgpu_list, "directories", json=True)
    inspect = _add(verbs, "inspect", "The books of one software GPU.", _softgpu_inspect, "directories", json=True)
    inspect.add_argument("number", nargs="?", default="0", metavar="N", help="its number (default 0)")
    _add(verbs, "destroy", "End all software GPUs; their clients see a lost device.", _softgpu_destroy, "directories")
    _add(verbs, "env", "What to export so that programs find them.", _softgpu_env, "directories", json=True)


def _add_study_commands(commands: Any) -> None:
    replay = _add(commands, "replay", "Replay a journal: does this version decide the same?", _replay, json=True)
    replay.add_argument("file", metavar="FILE", help="a journal, as in the state directory of a node")
    replay.add_argument("--log", action="store_true", help="print every turn")
    simulate = _add(commands, "simulate", "Run a scenario under the simulated clock.", _simulate, json=True)
    simulate.add_argument("scenario", metavar="SCENARIO.toml")
    simulate.add_argument("--seed", type=int, default=None, help="instead of the scenario's own")
    simulate.add_argument("--log", action="store_true", help="print every turn")
    simulate.add_argument("--journal", default="", metavar="FILE", help="write the journal here")
    bench = _add(commands, "bench", "Measure cotenant itself.", _bench, json=True)
    bench.add_argument("name", choices=["loop", "device"], help="loop: the two clocks; device: the software GPU")
    bench.add_argument("--rounds", type=int, default=5, help="interleaved repetitions (default 5)")
    demo = _add(commands, "demo", "The main job in front of your eyes, on this machine.", _demo, json=True)
    demo.add_argument("--replay", default="", metavar="FILE", help="examples/replay.py: also share a software GPU")
    demo.add_argument("--keep", default="", metavar="DIR", help="keep the node's directory here")


def _given(options: argparse.Namespace) -> dict[FieldName, Any]:
    given: dict[FieldName, Any] = {}
    for name, value in vars(options).items():
        section, dot, field = name.partition(".")
        if dot and value is not None:
            given[section, field] = value
    return given


def _load(options: argparse.Namespace) -> tuple[Config, Places]:
    path, named = config_file(os.environ, os.geteuid(), options.config)
    config = overlay(load_config(path, required=named), _given(options), getattr(options, "devices", ()))
    validate(config)
    return config, places(config.directories, os.environ, os.geteuid())


def _find(options: argparse.Namespace) -> tuple[Config, Places]:
    """As `_load`, for those who look for a node rather than be one."""
    config, own = _load(options)
    return config, door_to_use(own, os.environ, config.directories)


def _node(options: argparse.Namespace) -> int:
    from cotenant.apps.node import serve_node

    serve_node(*_load(options), _say)
    return 0


def _run(options: argparse.Namespace) -> int:
    from cotenant.apps.run import join, run_tenant, spec_of
    from cotenant.apps.softgpu import environment_of

    command = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not command:
        raise ConfigError("COMMAND", "", "say what to run, as in: cotenant run --online --slo 50ms -- python serve.py")
    config, where = _find(options)
    spec = spec_of(config.run, command)
    environment = environment_of(config.run.gpu, _load(options)[1])
    arguments = ["--runtime", str(where.runtime), "--state", str(where.state)]
    named = ["--config", options.config] if options.config else []
    return run_tenant(join(where, spec, [*arguments, *named], _say), command, environment, _say)


def _ps(options: argparse.Namespace) -> int:
    from cotenant.apps.show import show_tenants, tenants_json
    from cotenant.live.client import tenants_of

    roll = tenants_of(_find(options)[1].socket)
    if options.json:
        _print_json(tenants_json(roll))
    else:
        show_tenants(Console(), roll, everybody=options.all)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from cotenant.apps.show import show_findings
    from cotenant.live.doctor import Level, examine

    findings = examine(_find(options)[1])
    if not options.json:
        return 0 if show_findings(Console(), findings) else 1
    found = list(findings)
    _print_json({"findings": found})
    return 1 if any(finding.level is Level.BAD for finding in found) else 0


def _terms(options: argparse.Namespace) -> int:
    from cotenant.apps.show import show_terms
    from cotenant.live.page import own_terms

    terms = own_terms(os.environ)
    if options.json:
        _print_json(msgspec.structs.asdict(terms))
    else:
        show_terms(Console(), terms, os.environ.get("COTENANT_TENANT", ""))
    return 0


def _config(options: argparse.Namespace) -> int:
    path, named = config_file(os.environ, os.geteuid(), options.config)
    config, where = _load(options)
    if options.what == "check":
        found = named or path.exists()
        _say(f"{path}: {'fine' if found else 'there is none, the defaults hold'}")
        return 0
    if options.json:
        _print_json(plain(config))
        return 0
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    print(f"# socket, lock and pages: {where.runtime}\n# journal and log: {where.state}\n")
    print(encode_config(config, sources(text, str(path), _given(options))), end="")
    return 0


def _softgpu_create(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu
    from cotenant.apps.show import show_softgpus

    made = softgpu.create(_load(options)[1], options.gpu, options.count, options.memory, options.slice)
    if options.json:
        _print_json({"gpus": made})
    else:
        show_softgpus(Console(), made)
    return 0


def _softgpu_list(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu
    from cotenant.apps.show import show_softgpus

    found = softgpu.find(_load(options)[1])
    if options.json:
        _print_json({"gpus": found})
    else:
        show_softgpus(Console(), found)
    return 0


def _softgpu_inspect(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu
    from cotenant.apps.show import show_books

    books = softgpu.books(_load(options)[1], options.number)
    if options.json:
        _print_json(books)
    else:
        show_books(Console(), books)
    return 0


def _softgpu_destroy(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu
    from cotenant.apps.show import counted

    _say(f"{counted(softgpu.destroy(_load(options)[1]), 'software GPU')} ended")
    return 0


def _softgpu_env(options: argparse.Namespace) -> int:
    from cotenant.apps import softgpu

    variables = softgpu.environment(_load(options)[1])
    if options.json:
        _print_json(variables)
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
    return 0


def _replay(options: argparse.Namespace) -> int:
    from cotenant.apps.replay import replay_file
    from cotenant.apps.show import show_replay

    report = replay_file(Path(options.file), print if options.log else None)
    if options.json:
        _print_json(report)
    else:
        show_replay(Console(), report)
    return 0 if report.reproduced else 1


def _simulate(options: argparse.Namespace) -> int:
    from cotenant.apps.show import show_outcome
    from cotenant.apps.simulate import simulate_file

    outcome = simulate_file(Path(options.scenario), options.seed, options.journal, print if options.log else None)
    if options.json:
        _print_json(outcome)
    else:
        show_outcome(Console(), outcome)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from cotenant.apps.show import show_bench
    from cotenant.experiment.device import bench_device
    from cotenant.experiment.loop import bench_loop

    if not 1 <= options.rounds <= 1000:
        raise ConfigError("--rounds", options.rounds, "choose 1 to 1000")
    figures = {"loop": bench_loop, "device": bench_device}[options.name](options.rounds, _say)
    if not options.json:
        show_bench(Console(), figures)
    else:
        _print_json(figures)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from cotenant.apps.demo import run_demo

    return run_demo(Console(), options.keep, options.replay, as_json=options.json)
