"""Wires `cotenant softgpu fault`, `reset` and `set`: text to numbers, and which options go with which kind of fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cotenant.apps import softgpu
from cotenant.errors import ConfigError
from cotenant.format.quantity import parse_duration
from cotenant.live.directory import Places
from cotenant.live.softgpu import fault
from cotenant.live.softgpu.fault import Kind, Reach


@dataclass(frozen=True, slots=True)
class Wish:
    """What was written on the command line; None: nothing."""

    kind: str
    gpu: str
    client: str | None = None
    at_launch: str | None = None
    duration: str | None = None
    factor: str | None = None


def kinds() -> list[dict[str, Any]]:
    """All kinds of faults, for those who ask what there is."""
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


def inject(places: Places, wish: Wish) -> dict[str, Any]:
    """Make it happen; what was done."""
    kind = fault.KINDS.get(wish.kind)
    if kind is None:
        raise ConfigError("KIND", wish.kind, f"the kinds are {', '.join(fault.KINDS)}")
    _suit(kind, wish)
    ordinal = softgpu.existing(places, "--gpu", wish.gpu)
    home = softgpu.home(places)
    for_ns = 0 if wish.duration is None else parse_duration(wish.duration, field="--for")
    if not kind.number:
        factor = _factor(wish.factor)
        fault.set_clock(home, ordinal, factor, for_ns=for_ns)
        return {"gpu": ordinal, "kind": kind.name, "factor": factor, "for_ns": for_ns}
    struck = fault.inject(
        home,
        ordinal,
        kind,
        client=0 if wish.client is None else _count("--client", wish.client),
        at_launch=0 if wish.at_launch is None else _count("--at-launch", wish.at_launch),
        hang_ns=for_ns,
    )
    if not struck and kind.reach is not Reach.DEVICE:
        whom = "MPS client" if kind.reach is Reach.GROUP else "client without a fault"
        raise ConfigError("--gpu", wish.gpu, f"nobody to strike: soft GPU {ordinal} has no {whom}")
    return {"gpu": ordinal, "kind": kind.name, "struck": struck}


def reset(places: Places, number: str) -> None:
    """A lost device is there again."""
    fault.reset(softgpu.home(places), softgpu.existing(places, "N", number))


def set_mps_deaths(places: Places, gpu: str, harms: str) -> None:
    """Change a running soft GPU."""
    fault.set_mps_deaths(softgpu.home(places), softgpu.existing(places, "--gpu", gpu), harm=on_or_off(harms))


def on_or_off(choice: str, field: str = "--mps-death-harms") -> bool:
    if choice not in ("on", "off"):
        raise ConfigError(field, choice, 'write "on" or "off"')
    return choice == "on"


def _suit(kind: Kind, wish: Wish) -> None:
    unsuited = (
        ("--client", wish.client, kind.reach is Reach.DEVICE, "it strikes the whole device"),
        ("--at-launch", wish.at_launch, not kind.at_launch, "it does not come with a launch"),
        ("--for", wish.duration, not kind.lasting, "only hang and slow-clock have a duration"),
        ("--factor", wish.factor, bool(kind.number), "only slow-clock has a factor"),
    )
    for option, value, is_wrong, why in unsuited:
        if value is not None and is_wrong:
            raise ConfigError(option, value, f"leave it out with {kind.name}: {why}")


def _factor(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise ConfigError("--factor", text or "", "write the speed of kernels, such as 0.5; 1 is full speed") from None


def _count(field: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ConfigError(field, text, "write a whole number from 1 on")
    return int(text)
