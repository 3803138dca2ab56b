"""How is a timeline written as a soft GPU's image, and as the script that launches its kernels again?"""

from __future__ import annotations

import itertools
import re
from typing import Final

from cotenant.domain.kernel import KernelIdentity, Work
from cotenant.domain.timeline import Activity, Timeline

_NAME_LIMIT: Final = 480  # of a kernel in an image, see native/softgpu/face.h
_SHARED_LIMIT_BYTES: Final = 48 * 1024  # more is a matter of attributes, which a replay does not set
_MOST_THREADS: Final = 1024
_MOST_REGISTERS: Final = 255
_BYTES_PER_NS: Final = {"@htod": 12.0, "@dtoh": 12.0, "@dtod": 700.0, "@memset": 700.0}
"""How fast a copy of unknown size is taken to have been: PCIe 3.0, and HBM2 both ways. Our choice."""


def image_name(kernel: KernelIdentity) -> str:
    """The kernel's function as one word of an image: blanks separate words there, and # begins a comment."""
    return re.sub(r"\s+", "_", kernel.function.strip()).replace("#", "%")[:_NAME_LIMIT] or "nameless"


def image_of(timeline: Timeline) -> str:
    """A text image with every function of the timeline; each launch says how long it takes."""
    lines = ["softgpu-image 1"]
    seen: dict[str, None] = {}
    for activity in timeline.activities:
        name = image_name(activity.kernel)
        if activity.kernel.work is not Work.KERNEL or name in seen:
            continue
        seen[name] = None
        lines += [f"kernel {name}", "  params 8", "  duration_param 0"]
        if activity.registers:
            lines.append(f"  registers {min(activity.registers, _MOST_REGISTERS)}")
        if activity.kernel.shared_bytes:
            lines.append(f"  shared_bytes {min(activity.kernel.shared_bytes, _SHARED_LIMIT_BYTES)}")
    return "\n".join(lines) + "\n"


def script_of(timeline: Timeline) -> str:
    """The launches in the order of the host, with the time from each to the next; without any, back to back."""
    launches = _scheduled(timeline)
    lines = [f"# {timeline.task}: {len(launches)} launches", "# NAME BLOCKS THREADS DURATION_NS INTERVAL_NS STREAM"]
    for (at_ns, activity), (next_ns, _) in itertools.pairwise((*launches, launches[-1])):
        lines.append(_line(activity, next_ns - at_ns))
    return "\n".join(lines) + "\n"


def _scheduled(timeline: Timeline) -> list[tuple[int, Activity]]:
    """Everything with the instant of its launch; what has none was launched with what ran before it, as in a graph."""
    latest_ns = min((one.launch_ns for one in timeline.activities if one.launch_ns is not None), default=0)
    found = []
    for activity in timeline.activities:
        if activity.launch_ns is not None:
            latest_ns = activity.launch_ns
        found.append((latest_ns, activity))
    return sorted(found, key=lambda one: one[0])


def _line(activity: Activity, interval_ns: int) -> str:
    kernel = activity.kernel
    if kernel.work is Work.KERNEL:
        threads = min(kernel.threads_per_block, _MOST_THREADS)
        return f"{image_name(kernel)} {kernel.blocks} {threads} {activity.device_ns} {interval_ns} {activity.stream}"
    word = _copy_word(kernel)
    moved_bytes = activity.moved_bytes or max(int(activity.device_ns * _BYTES_PER_NS[word]), 1)
    return f"{word} {moved_bytes} {interval_ns} {activity.stream}"


def _copy_word(kernel: KernelIdentity) -> str:
    if kernel.work is Work.MEMSET:
        return "@memset"
    name = kernel.function.lower()
    return next((word for word in ("@htod", "@dtoh") if word[1:] in name), "@dtod")
