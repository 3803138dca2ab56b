"""How do MPS's programs come to be? As files that start this interpreter, in the bin of a soft GPU directory."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

PROGRAMS: Final = {"nvidia-cuda-mps-control": "control", "nvidia-cuda-mps-server": "server"}
"""What each is called, and its module beside this one."""

# Started by a shell, for the interpreter's path may have spaces or be too long; Python takes that line for a string.
_TEXT: Final = """#!/bin/sh
'''exec' {python} "$0" "$@"
'''
import sys
from cotenant.live.softgpu.mps.{module} import main
sys.exit(main(sys.argv[1:]))
"""


def make_programs(folder: Path) -> None:
    """In a folder of their own: on a machine with NVIDIA's programs these must not come first unasked."""
    folder.mkdir(exist_ok=True)
    for name, module in PROGRAMS.items():
        program = folder / name
        program.write_text(_TEXT.format(python=shlex.quote(sys.executable), module=module))
        program.chmod(0o755)
