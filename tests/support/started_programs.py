"""Ways to start a program that holds device memory, and what the node and the device must then account for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.node_processes import COTENANT
from tests.support.software_gpus import PROGRAMS

STARTS = [sys.executable, str(PROGRAMS / "starts.py")]
KEPT_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""Variables that `env -i` keeps, besides those of cotenant."""


class Way(NamedTuple):
    """One way to start a program; each number is the memory of one of its processes, in MiB."""

    held: tuple[int, ...]
    script: str = ""
    """A shell script, in which {hold N} starts a process that holds N MiB; empty: starts.py knows the way itself."""
    tenants: int = 1
    """Tenants that it makes under `cotenant run`, itself included."""
    outlives_run: bool = False
    """Whether a process remains when the first one has ended; `cotenant run` ends it."""


WAYS: dict[str, Way] = {
    "shell": Way((12,), "{hold 12}; true"),
    "exec-chain": Way((12,), "exec env sh -c 'exec nice sh -c \"exec $0\"' '{hold 12}'"),
    "clean-environment": Way((12,), "env -i {variables} {hold 12}"),
    "nohup": Way((12,), "nohup {hold 12} < /dev/null > /dev/null 2>&1"),
    "setsid": Way((12,), "setsid --wait {hold 12}"),
    "timeout": Way((12,), "timeout 600 {hold 12}"),
    "xargs": Way((3, 5, 7), "printf '3\\n5\\n7\\n' | xargs -P 3 -n 1 {hold}"),
    "pipeline": Way((3, 9), "{hold 3} | {hold 9}"),
    "background": Way((3, 9), "{hold 3} & {hold 9} & wait"),
    "trapping-shell": Way((12,), "trap '' INT TERM HUP; trap 'true' EXIT; {hold 12}; true"),
    "subshells": Way((3, 9), "( ( {hold 3} ) & ( cd /; {hold 9} ); wait )"),
    "vfork": Way((12,), "{vforks} {hold 12}"),
    "nested-run": Way((12,), f"{{directories}} {shlex.join(COTENANT)} run --start-node no -- {{hold 12}}", tenants=2),
    "double-fork": Way((12,)),
    "orphan": Way((12,), outlives_run=True),
    "fork-server": Way((4, 6, 8)),
    "multiprocessing-fork": Way((2, 4, 8)),
    "multiprocessing-spawn": Way((2, 4, 8)),
    "multiprocessing-forkserver": Way((2, 4, 8)),
    "subprocess": Way((12,)),
    "posix-spawn": Way((12,)),
    "thread-forks": Way((12,)),
    "fork-after-init": Way((4, 8)),
    "exec-after-init": Way((12,)),
    "without-descriptors": Way((12,)),
    "elsewhere": Way((12,)),
    "other-root": Way((12,)),
}


def command_of(name: str, directory: Path, vforks: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the command that starts the program in this way; its processes announce themselves in the directory.

    `environ` is the environment of commands of cotenant.
    """
    way = WAYS[name]
    if not way.script:
        return [*STARTS, name, str(directory)]
    hold = shlex.join([*STARTS, "hold", str(directory)])
    words = way.script.replace("{hold}", hold).replace("{vforks}", shlex.quote(str(vforks)))
    for mebibytes in way.held:
        words = words.replace(f"{{hold {mebibytes}}}", f"{hold} {mebibytes}")
    kept = " ".join(f'${{{variable}+{variable}="${variable}"}}' for variable in KEPT_VARIABLES)
    words = words.replace("{variables}", f"{kept} $(env | grep ^COTENANT_ | grep -v ' ')")
    own = " ".join(f"{name}={shlex.quote(environ[name])}" for name in ("COTENANT_DIRECTORY", "COTENANT_CONFIG"))
    return ["sh", "-c", words.replace("{directories}", own)]
