"""Measurement of call costs on a software GPU: `python -m cotenant.softgpu.probe ROUNDS BURST NS`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from cotenant import _native
from cotenant.softgpu import manage

_IMAGE = "softgpu-image 1\nkernel probe\n params 8\n duration_param 0\n"


def main(arguments: list[str]) -> int:
    """Measure in this process, which must have been started with the software GPU's environment.

    `events ROUNDS NS` measures queries. With a fourth argument it then waits for the end of its input, as a
    connected and idle client.
    """
    if arguments[0] == "events":
        queries, confirmed = _native.probe_events(_IMAGE, "probe", int(arguments[1]), int(arguments[2]))
        result = {"query_ns": queries, "confirmed_ns": confirmed}
    else:
        rounds, burst, duration_ns = (int(word) for word in arguments[:3])
        launches, delays = _native.probe_driver(_IMAGE, "probe", rounds, burst, duration_ns)
        result = {"launch_ns": launches, "late_ns": delays}
    print(json.dumps(result), flush=True)  # noqa: T201  a program of its own
    if arguments[3:]:
        sys.stdin.read()
    return 0


def environment(directory: Path) -> dict[str, str]:
    """Return the environment with which this module must be started."""
    return {**os.environ, **manage.env(directory), "CUDA_VISIBLE_DEVICES": "0"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
