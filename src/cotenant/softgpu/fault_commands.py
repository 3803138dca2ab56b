"""Implementation of `cotenant softgpu fault`, `reset` and `set`: parsing, and the options of each kind of fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cotenant.errors import ConfigError
from cotenant.node.directories import Directories
from cotenant.softgpu import commands as softgpu
from cotenant.softgpu import fault
from cotenant.softgpu.fault import Kind, Reach
from cotenant.units.text import parse_duration


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Options as written; None: not given."""

    kind: str
    gpu: str
    client: str | None = None
    at_launch: str | None = None
    duration: str | None = None
    factor: str | None = None


def kinds() -> list[dict[str, Any]]:
    """Return all kinds of faults."""
    return [
        {
            "kind": kind.name,
            "strikes": kind.reach.value,
            "code": kind.code,
            "xids": list(kind.xids),
            "about": kind.about,
        }
        for kind in fault.KINDS.values()
    ]


def inject(directories: Directories, options: FaultOptions) -> dict[str, Any]:
    """Inject a fault and return its description as JSON values."""
    kind = fault.KINDS.get(options.kind)
    if kind is None:
        raise ConfigError("KIND", options.kind, f"the kinds are {', '.join(fault.KINDS)}")
    _check_options(kind, options)
    ordinal = softgpu.existing(directories, "--gpu", options.gpu)
    home = softgpu.home(directories)
    for_ns = 0 if options.duration is None else parse_duration(options.duration, field="--for")
    if not kind.number:
        factor = _factor(options.factor)
        fault.set_clock(home, ordinal, factor, for_ns=for_ns)
        return {"gpu": ordinal, "kind": kind.name, "factor": factor, "for_ns": for_ns}
    affected = fault.inject(
        home,
        ordinal,
        kind,
        client=0 if options.client is None else _count("--client", options.client),
        at_launch=0 if options.at_launch is None else _count("--at-launch", options.at_launch),
        hang_ns=for_ns,
    )
    if not affected and kind.reach is not Reach.DEVICE:
        target = "MPS client" if kind.reach is Reach.GROUP else "client without a fault"
        raise ConfigError("--gpu", options.gpu, f"software GPU {ordinal} has no {target} to inject the fault into")
    return {"gpu": ordinal, "kind": kind.name, "struck": affected}


def reset(directories: Directories, number: str) -> None:
    """Restore a lost device."""
    fault.reset(softgpu.home(directories), softgpu.existing(directories, "N", number))


def set_mps_deaths(directories: Directories, gpu: str, harms: str) -> None:
    """Change a running software GPU."""
    fault.set_mps_deaths(softgpu.home(directories), softgpu.existing(directories, "--gpu", gpu), harm=on_or_off(harms))


def on_or_off(choice: str, field: str = "--mps-death-harms") -> bool:
    if choice not in ("on", "off"):
        raise ConfigError(field, choice, 'write "on" or "off"')
    return choice == "on"


def _check_options(kind: Kind, options: FaultOptions) -> None:
    conflicts = (
        ("--client", options.client, kind.reach is Reach.DEVICE, "it affects the whole device"),
        ("--at-launch", options.at_launch, not kind.at_launch, "it does not occur at a launch"),
        ("--for", options.duration, not kind.lasting, "only hang and slow-clock have a duration"),
        ("--factor", options.factor, bool(kind.number), "only slow-clock has a factor"),
    )
    for option, value, is_wrong, why in conflicts:
        if value is not None and is_wrong:
            raise ConfigError(option, value, f"omit it with {kind.name}: {why}")


def _factor(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise ConfigError("--factor", text or "", "write the speed of kernels, such as 0.5; 1 is full speed") from None


def _count(field: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ConfigError(field, text, "write a whole number from 1 on")
    return int(text)
