"""Find the directory of published measurements and read files from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cotenant.errors import ConfigError

VARIABLE: Final = "COTENANT_DATA"
DATA_PAGE: Final = "docs/evaluation/data lists where to download each data set"


def data_directory(flag: str, environ: Mapping[str, str]) -> Path:
    """Return the directory that `--data` or COTENANT_DATA names; raise ConfigError if neither names an existing one."""
    named = flag or environ.get(VARIABLE, "")
    if not named:
        raise ConfigError("--data", "", f"names no directory and {VARIABLE} is not set; set one of them; {DATA_PAGE}")
    if not Path(named).is_dir():
        raise ConfigError("--data" if flag else VARIABLE, named, f"is not a directory; {DATA_PAGE}")
    return Path(named)


def missing_data(path: Path) -> ConfigError:
    """Return the error for a data set that is not in the directory."""
    return ConfigError("data", str(path), f"does not exist; {DATA_PAGE}")


def measurement_bytes(path: Path) -> bytes:
    """Return the content of a file of measurements."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise missing_data(path) from None
    except OSError as error:
        raise ConfigError("data", str(path), f"cannot be read: {error.strerror}; check the directory") from None
