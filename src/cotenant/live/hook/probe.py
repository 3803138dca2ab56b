"""What does the hook cost a program? `python -m cotenant.live.hook.probe compare|spend|requests|floor NUMBERS`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cotenant import _native
from cotenant.live.hook import door

_IMAGE = "softgpu-image 1\nkernel probe\n params 8\n duration_param 0\n blocks_per_sm 8\n"


def main(arguments: list[str]) -> int:
    """Measure in this process, whose environment says what stands between it and which driver."""
    numbers = [int(word) for word in arguments[1:]]
    if arguments[0] == "compare":
        said: object = _native.hook_compare(*numbers)
    elif arguments[0] == "floor":
        said = _native.hook_floor(*numbers)
    elif arguments[0] == "requests":
        said = _native.hook_requests(_IMAGE, "probe", *numbers)
    else:
        said = _native.hook_spend(_IMAGE, "probe", *numbers)
    print(json.dumps(said))  # noqa: T201  a program of its own
    return 0


def environment(
    home: Path, driver: Path, base: Mapping[str, str], *, measure: bool, sample: int, trace: bool = True
) -> dict[str, str]:
    """What this module must be started with so that the hook stands before a driver."""
    shim, records = home / "shim", home / "records"
    if not shim.exists():
        door.make_shim(shim, driver)
        records.mkdir()
    told = {
        door.RECORD_VARIABLE: str(records),
        "COTENANT_MEASURE": str(int(measure)),
        "COTENANT_SAMPLE": str(sample),
        "COTENANT_TRACE": str(int(trace)),
    }
    return {**os.environ, **base, **told, **door.environment("shim", shim, base)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
