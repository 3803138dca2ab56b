"""Creation of the MPS programs in the bin of a software GPU directory, as files that start this interpreter."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

PROGRAMS: Final = {"nvidia-cuda-mps-control": "control", "nvidia-cuda-mps-server": "server"}
"""Program names, with the module of each in this package."""

# Started by a shell, because the interpreter's path may contain spaces or be too long; Python reads the line as a
# string.
_TEXT: Final = """#!/bin/sh
'''exec' {python} "$0" "$@"
'''
import sys
from cotenant.softgpu.mps.{module} import main
sys.exit(main(sys.argv[1:]))
"""


def make_programs(folder: Path) -> None:
    """Create the programs in their own folder, so that they do not precede NVIDIA's programs unless requested."""
    folder.mkdir(exist_ok=True)
    for name, module in PROGRAMS.items():
        program = folder / name
        program.write_text(_TEXT.format(python=shlex.quote(sys.executable), module=module))
        program.chmod(0o755)
