"""Measure what the hook costs a program: `python -m cotenant.hook.probe compare|spend|requests|floor NUMBERS`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cotenant import _native
from cotenant.hook import shim

_IMAGE = "softgpu-image 1\nkernel probe\n params 8\n duration_param 0\n blocks_per_sm 8\n"


def main(arguments: list[str]) -> int:
    """Measure in this process; its environment selects the driver and whether the hook is loaded."""
    numbers = [int(word) for word in arguments[1:]]
    if arguments[0] == "compare":
        result: object = _native.hook_compare(*numbers)
    elif arguments[0] == "floor":
        result = _native.hook_baseline(*numbers)
    elif arguments[0] == "requests":
        result = _native.hook_requests(_IMAGE, "probe", *numbers)
    else:
        result = _native.hook_spend(_IMAGE, "probe", *numbers)
    print(json.dumps(result))  # noqa: T201  a program of its own
    return 0


def environment(
    home: Path, driver: Path, base: Mapping[str, str], *, measure: bool, sample: int, trace: bool = True
) -> dict[str, str]:
    """Return the environment with which this module runs under the hook, before this driver."""
    directory, records = home / "shim", home / "records"
    if not directory.exists():
        shim.make_shim(directory, driver)
        records.mkdir()
    settings = {
        shim.RECORD_VARIABLE: str(records),
        "COTENANT_MEASURE": str(int(measure)),
        "COTENANT_SAMPLE": str(sample),
        "COTENANT_TRACE": str(int(trace)),
    }
    return {**os.environ, **base, **settings, **shim.environment("shim", directory, base)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
