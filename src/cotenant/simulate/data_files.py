"""Find the data files that a scenario names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cotenant.errors import ConfigError

VARIABLE: Final = "COTENANT_DATA"


def find_data_file(name: str, field: str, scenario: Path, data: str = "") -> Path:
    """Return the file: next to the scenario, or in the data directory.

    The data directory is `data` (from `--data`), or else $COTENANT_DATA; there is no default. Raises `ConfigError` for
    `field` if the file is in neither place.
    """
    directory = data or os.environ.get(VARIABLE, "")
    candidates = [scenario.parent / name, *([Path(directory) / name] if directory else [])]
    for path in candidates:
        if path.is_file():
            return path
    searched = " or ".join(str(path.parent) for path in candidates)
    remedy = f"there is no such file in {searched}; set --data or {VARIABLE} as docs/evaluation/data.md describes"
    raise ConfigError(field, name, remedy, where=str(scenario))
