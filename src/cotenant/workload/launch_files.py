"""Launches as a software GPU's image and as a launch script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cotenant.workload.kernel import KernelIdentity, WorkKind
from cotenant.workload.load import Launch, launches_of
from cotenant.workload.timeline import Timeline

_NAME_LIMIT: Final = 480  # limit of a kernel name in an image, see native/softgpu/driver/internal.h
_SHARED_LIMIT_BYTES: Final = 48 * 1024  # more requires attributes, which a replay does not set
_MAX_THREADS: Final = 1024
_MAX_REGISTERS: Final = 255
_BYTES_PER_NS: Final = {"@htod": 12.0, "@dtoh": 12.0, "@dtod": 700.0, "@memset": 700.0}
"""Assumed bandwidth of a copy of unknown size: PCIe 3.0, and HBM2 in both directions. Our choice."""


def image_name(kernel: KernelIdentity) -> str:
    """Return the function name as one word: blanks separate words in an image, and # starts a comment."""
    return re.sub(r"\s+", "_", kernel.function.strip()).replace("#", "%")[:_NAME_LIMIT] or "nameless"


def image_of(timeline: Timeline) -> str:
    """Return a text image with every function of the timeline; each launch carries its duration."""
    return image_text(launches_of(timeline))


def image_text(launches: Sequence[Launch]) -> str:
    """Return a text image with every launched function; each launch carries its duration.

    The traffic of a function is that of its first launch.
    """
    lines = ["softgpu-image 1"]
    names: dict[str, None] = {}
    for launch in launches:
        name = image_name(launch.kernel)
        if launch.kernel.work is not WorkKind.KERNEL or name in names:
            continue
        names[name] = None
        lines += [f"kernel {name}", "  params 8", "  duration_param 0"]
        lines.append(f"  bandwidth {100 * launch.bandwidth_part:g}%")
        if launch.registers:
            lines.append(f"  registers {min(launch.registers, _MAX_REGISTERS)}")
        if launch.kernel.shared_bytes:
            lines.append(f"  shared_bytes {min(launch.kernel.shared_bytes, _SHARED_LIMIT_BYTES)}")
    return "\n".join(lines) + "\n"


def script_of(timeline: Timeline) -> str:
    """Return the launches in host order, with the interval to the next; without launch times, back to back."""
    return script_text(timeline.task, launches_of(timeline))


def script_text(task: str, launches: Sequence[Launch]) -> str:
    """Return one line per launch."""
    lines = [f"# {task}: {len(launches)} launches", "# NAME BLOCKS THREADS DURATION_NS INTERVAL_NS STREAM"]
    return "\n".join((*lines, *(_line(launch) for launch in launches))) + "\n"


def _line(launch: Launch) -> str:
    kernel = launch.kernel
    if kernel.work is WorkKind.KERNEL:
        threads = min(kernel.threads_per_block, _MAX_THREADS)
        shape = f"{kernel.blocks} {threads} {launch.device_ns}"
        return f"{image_name(kernel)} {shape} {launch.interval_ns} {launch.stream}"
    word = _copy_word(kernel)
    moved_bytes = launch.moved_bytes or max(int(launch.device_ns * _BYTES_PER_NS[word]), 1)
    return f"{word} {moved_bytes} {launch.interval_ns} {launch.stream}"


def _copy_word(kernel: KernelIdentity) -> str:
    if kernel.work is WorkKind.MEMSET:
        return "@memset"
    name = kernel.function.lower()
    return next((word for word in ("@htod", "@dtoh") if word[1:] in name), "@dtod")
