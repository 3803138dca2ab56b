"""`cotenant softgpu`: create, inspect, break and destroy software GPUs."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cotenant.cli.command import add_command, add_verbs, group, load, output, print_json, print_line
from cotenant.cli.parser import Parser
from cotenant.errors import ConfigError

_MPS_DEATH: Final = "Whether an MPS client that dies with work in flight also kills its co-clients (default on)."
_DATA_VARIABLE: Final = "COTENANT_DATA"


def configure_softgpu(parser: Parser) -> None:
    verbs = add_verbs(parser)
    _add_create(verbs)
    add_command(verbs, "list", "List the software GPUs.", _list, "directories", json=True)
    inspect = add_command(verbs, "inspect", "Show the counters of a software GPU.", _inspect, "directories", json=True)
    inspect.add_argument("number", nargs="?", default="0", metavar="N", help="Number of the software GPU (default 0).")
    about = "Print the environment variables with which programs use the software GPUs."
    add_command(verbs, "env", about, _env, "directories", json=True)
    _add_fault_commands(verbs)
    about = "Write replay models, which a server runs without computing anything."
    models = add_command(verbs, "models", about, _models, json=True)
    about = "Folder to write to, for `cotenant serve run DIR --runtime replay`."
    models.add_argument("folder", metavar="DIR", help=about)
    models.add_argument("names", nargs="*", metavar="NAME", help="Models to write (default: all).")
    about = f"Also models from the kernel lists in this directory; empty: ${_DATA_VARIABLE}."
    models.add_argument("--data", default=None, metavar="DIR", help=about)
    about = "Multiply kernel times by this factor (default 1)."
    models.add_argument("--time-factor", type=float, default=1.0, metavar="F", help=about)
    about = "End all software GPUs; their clients get an error as from a lost device."
    add_command(verbs, "destroy", about, _destroy, "directories")


def _add_create(verbs: Any) -> None:
    create = add_command(verbs, "create", "Start software GPUs on this machine.", _create, "directories", json=True)
    device = group(create, "Device")
    about = "t4, v100 (default), v100-32, a100, a100-80 or h100."
    device.add_argument("--gpu", dest="type", default="v100", metavar="TYPE", help=about)
    device.add_argument("--count", default="1", metavar="N", help="Number of GPUs to start (default 1).")
    about = "Costs of calls, launches, switches and contention: hardware, ideal (none; default), or a TOML file."
    device.add_argument("--costs", default="ideal", metavar="NAME|FILE", help=about)
    about = "Device memory (default: as the type has)."
    device.add_argument("--memory", default=None, metavar="SIZE", help=about)
    about = "Time slice between processes (default: that of the costs, 2ms)."
    device.add_argument("--slice", default=None, metavar="DURATION", help=about)
    about = "default, exclusive-process or prohibited."
    device.add_argument("--compute-mode", default="default", metavar="MODE", help=about)
    about = "Device memory that each context takes (default 0B)."
    device.add_argument("--context-memory", default=None, metavar="SIZE", help=about)
    about = "Whether loaded modules take device memory (default off)."
    device.add_argument("--module-memory", default="off", metavar="on|off", help=about)
    device.add_argument("--mps-death-harms", default="on", metavar="on|off", help=_MPS_DEATH)
    about = "Stay until SIGTERM or Ctrl-C, and end the software GPUs then."
    create.add_argument("--foreground", action="store_true", help=about)


def _add_fault_commands(verbs: Any) -> None:
    fault = add_command(verbs, "fault", "Inject a fault.", _fault, "directories", json=True)
    fault.add_argument("kind", nargs="?", default="", metavar="KIND", help="Kind of fault; --list shows all kinds.")
    fault.add_argument("--list", action="store_true", help="List the kinds and their effects.")
    fault.add_argument("--gpu", default="0", metavar="N", help="Number of the software GPU (default 0).")
    fault.add_argument("--client", default=None, metavar="PID", help="Client that it affects (default: all).")
    fault.add_argument("--at-launch", default=None, metavar="N", help="Inject it at the Nth launch from now.")
    about = "Duration of a hang or slow-clock fault."
    fault.add_argument("--for", dest="duration", default=None, metavar="DURATION", help=about)
    about = "Speed during a slow-clock fault, 0.1 to 1."
    fault.add_argument("--factor", default=None, metavar="F", help=about)
    reset = add_command(verbs, "reset", "Reset a lost software GPU.", _reset, "directories")
    reset.add_argument("number", nargs="?", default="0", metavar="N", help="Number of the software GPU (default 0).")
    setting = add_command(verbs, "set", "Change a running software GPU.", _set, "directories")
    setting.add_argument("--gpu", default="0", metavar="N", help="Number of the software GPU (default 0).")
    setting.add_argument("--mps-death-harms", required=True, metavar="on|off", help=_MPS_DEATH)


def _models(options: argparse.Namespace) -> int:
    paths = write_models(Path(options.folder), options.names, options.data, options.time_factor, os.environ)
    if options.json:
        print_json({"models": [str(path) for path in paths]})
    else:
        print_line(f"{len(paths)} models; serve them with: cotenant serve run {options.folder} --runtime replay")
    return 0


def _create(options: argparse.Namespace) -> int:
    from cotenant.cli.render.softgpu import show_softgpus
    from cotenant.softgpu import commands as softgpu
    from cotenant.softgpu import fault_commands as softgpu_fault

    settings = softgpu.CreateOptions(
        options.type,
        options.count,
        options.memory,
        options.slice,
        options.context_memory,
        softgpu_fault.on_or_off(options.module_memory, field="--module-memory"),
        options.compute_mode,
        softgpu_fault.on_or_off(options.mps_death_harms),
        options.costs,
    )
    directories = load(options)[1]
    created = softgpu.create(directories, settings)
    if options.json:
        print_json({"gpus": created})
    else:
        show_softgpus(output(), created)
    if options.foreground:
        stopping = (signal.SIGTERM, signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, stopping)  # after the creation: the servers would inherit the mask
        signal.sigwait(stopping)
        softgpu.destroy(directories)
    return 0


def _list(options: argparse.Namespace) -> int:
    from cotenant.cli.render.softgpu import show_softgpus
    from cotenant.softgpu import commands as softgpu

    gpus = softgpu.find(load(options)[1])
    if options.json:
        print_json({"gpus": gpus})
    else:
        show_softgpus(output(), gpus)
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from cotenant.cli.render.softgpu import show_counters
    from cotenant.softgpu import commands as softgpu

    counters = softgpu.counters(load(options)[1], options.number)
    if options.json:
        print_json(counters)
    else:
        show_counters(output(), counters)
    return 0


def _destroy(options: argparse.Namespace) -> int:
    from cotenant.softgpu import commands as softgpu
    from cotenant.units.text import counted

    print_line(f"{counted(softgpu.destroy(load(options)[1]), 'software GPU')} ended")
    return 0


def _env(options: argparse.Namespace) -> int:
    from cotenant.softgpu import commands as softgpu

    variables = softgpu.environment(load(options)[1])
    if options.json:
        print_json(variables)
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
    return 0


def _fault(options: argparse.Namespace) -> int:
    from cotenant.cli.render.softgpu import show_faults
    from cotenant.softgpu import fault_commands as softgpu_fault

    if options.list:
        if options.json:
            print_json({"kinds": softgpu_fault.kinds()})
        else:
            show_faults(output(), softgpu_fault.kinds())
        return 0
    settings = softgpu_fault.FaultOptions(
        options.kind, options.gpu, options.client, options.at_launch, options.duration, options.factor
    )
    result = softgpu_fault.inject(load(options)[1], settings)
    if options.json:
        print_json(result)
    else:
        print_line(", ".join(f"{name} {value}" for name, value in result.items()))
    return 0


def _reset(options: argparse.Namespace) -> int:
    from cotenant.softgpu import fault_commands as softgpu_fault

    softgpu_fault.reset(load(options)[1], options.number)
    print_line(f"software GPU {options.number} is reset")
    return 0


def _set(options: argparse.Namespace) -> int:
    from cotenant.softgpu import fault_commands as softgpu_fault

    softgpu_fault.set_mps_deaths(load(options)[1], options.gpu, options.mps_death_harms)
    return 0


def write_models(
    folder: Path, names: Sequence[str], data: str | None, time_factor: float, environ: Mapping[str, str]
) -> list[Path]:
    """Write replay models, those named or all, and return the files; `data` is a directory with kernel lists."""
    from cotenant.serve.replay_catalogue import (
        built_in_model,
        built_in_names,
        kernel_list_model,
        kernel_lists,
        slow_down,
    )
    from cotenant.serve.replay_model_format import SUFFIX, encode_replay

    if not 0.01 <= time_factor <= 1000:
        raise ConfigError("--time-factor", time_factor, "choose 0.01 to 1000")
    lists = {} if data is None else kernel_lists(_data_directory(data, environ))
    if data is not None and not lists:
        raise ConfigError("--data", data, "has no kernel lists of inference (orion/model_kernels/*_fwd.csv)")
    unknown = [name for name in names if name not in lists and name not in built_in_names()]
    if unknown:
        more = "" if lists else "; --data adds others"
        raise ConfigError("NAME", unknown[0], f"choose from {', '.join([*built_in_names(), *lists])}{more}")
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or dict.fromkeys([*built_in_names(), *lists]):
            kernel_list = lists.get(name)
            model = built_in_model(name) if kernel_list is None else kernel_list_model(kernel_list)
            about = "a made-up shape" if kernel_list is None else f"from the kernel list {kernel_list.name}"
            path = folder / f"{name}{SUFFIX}"
            path.write_text(
                encode_replay(slow_down(model, time_factor), f"{name}: {about}; nothing is computed"), "utf-8"
            )
            paths.append(path)
    except OSError as error:
        raise ConfigError("DIR", str(folder), f"cannot be written: {error.strerror}; choose another folder") from None
    return paths


def _data_directory(flag: str, environ: Mapping[str, str]) -> Path:
    """Return the directory of the measurements: the flag's, or the variable's if the flag is empty."""
    name, directory = ("--data", flag) if flag else (_DATA_VARIABLE, environ.get(_DATA_VARIABLE, ""))
    if not directory or not Path(directory).is_dir():
        raise ConfigError(name, directory, "no such directory; name the one that holds the measurements")
    return Path(directory)
