"""`python -m cotenant_lab.kubernetes requirements|build|up|demo|remove`.

requirements: say what this machine lacks for a cluster; build: build the programs of a cluster; up: run a cluster
until Ctrl-C; demo: run the product on a cluster; remove: remove what killed runs left.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from cotenant.errors import ConfigError, CotenantError, SetupError
from cotenant_lab.kubernetes import binaries, leftovers, requirements
from cotenant_lab.kubernetes.cluster import TEMPORARY, TestCluster
from cotenant_lab.kubernetes.demo import run_demo

_INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""


def main() -> int:
    """Run one of the commands and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cotenant_lab.kubernetes", description=__doc__)
    parser.add_argument("command", choices=["requirements", "build", "up", "demo", "remove"])
    parser.add_argument("--nodes", type=int, default=1, help="up: number of nodes, 1 to 100 (default 1)")
    parser.add_argument("--image", type=Path, action="append", default=[], help="up: docker archive to import")
    options = parser.parse_args()
    try:
        if options.command == "requirements":
            return _requirements()
        if options.command == "build":
            binaries.build(list(binaries.MODULES), _report)
            binaries.build_pause(_report)
        elif options.command == "remove":
            for name in leftovers.remove_abandoned(TEMPORARY):
                print(f"removed {name}")
        elif options.command == "demo":
            _demo()
        else:
            _up(options)
    except KeyboardInterrupt:
        _report("interrupted; everything that was started has been removed")
        return _INTERRUPTED
    except CotenantError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _requirements() -> int:
    """Print each thing that is missing; the exit code is that of a SetupError if there is one."""
    found = requirements.missing()
    for text in found:
        print(f"a test cluster cannot run here: {text}", file=sys.stderr)
    return SetupError.exit_code if found else 0


def _demo() -> None:
    """Run the demo; its last line is JSON. SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
    summary = run_demo(Console(), lambda text: _report(f"demo: {text}"))
    print(json.dumps(summary), flush=True)


def _up(options: argparse.Namespace) -> None:
    if not 1 <= options.nodes <= 100:
        raise ConfigError("--nodes", options.nodes, "choose 1 to 100")
    for image in options.image:
        if not image.is_file():
            raise ConfigError("--image", str(image), "is not a file: name a docker archive")
    stopping = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    with TestCluster(options.nodes, images=options.image, report=_report) as cluster:
        print(f"export KUBECONFIG={cluster.kubeconfig}")
        print(f"logs: {cluster.logs}; Ctrl-C removes the cluster", flush=True)
        signal.sigwait(stopping)
    for text in cluster.leftovers():
        print(f"left: {text}")


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
