"""A training job on the first GPU: `python3 train.py [--steps N] [--kernel-us US] [--checkpoint FILE]`.

It reports its progress to the file that $COTENANT_PROGRESS names. On SIGTERM it writes the number of completed steps to
the checkpoint and ends; the next run continues from there.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cotenant_lab.programs.client import OUT_OF_MEMORY, CudaClient, CudaError

KERNELS: Final = 20
BLOCKS: Final = 160
FAILED: Final = 3
TERMINATED: Final = 143


class TerminatedError(Exception):
    """SIGTERM arrived."""


def train(options: argparse.Namespace) -> None:
    """Run all steps that are left."""
    done = int(options.checkpoint.read_text()) if options.checkpoint and options.checkpoint.exists() else 0
    print(f"training begins at step {done} of {options.steps}", flush=True)
    client = CudaClient()
    client.allocate(options.memory_mib << 20)
    try:
        while done < options.steps:
            for _ in range(KERNELS):
                client.launch(options.kernel_us * 1000, BLOCKS)
            client.wait()
            done += 1
            _report(done, options.steps)
    finally:
        if options.checkpoint:
            options.checkpoint.write_text(str(done))
    print(f"training ended after step {done}", flush=True)


def _report(done: int, steps: int) -> None:
    if name := os.environ.get("COTENANT_PROGRESS"):
        Path(name).write_text(f"{done}/{steps}\n")


def _terminate(*_: object) -> None:
    raise TerminatedError


def main(arguments: Sequence[str]) -> int:
    """Train until the end or until SIGTERM."""
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="number of steps (default 100)")
    parser.add_argument("--kernel-us", type=int, default=2000, help="duration of a kernel (default 2000)")
    parser.add_argument("--memory-mib", type=int, default=512, help="device memory (default 512)")
    parser.add_argument("--checkpoint", type=Path, default=None, help="file with the number of completed steps")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        train(options)
    except TerminatedError:
        print("training stops, because SIGTERM arrived", flush=True)
        return TERMINATED
    except CudaError as error:
        print(f"training failed: {error}", file=sys.stderr, flush=True)
        return OUT_OF_MEMORY if error.code == OUT_OF_MEMORY else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
