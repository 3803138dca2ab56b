"""Wires `cotenant run --variables`: what a file adds to the program's environment, and not to our own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.errors import ConfigError
from cotenant.format.variables import decode_variables

_LIMIT_BYTES: Final = 16 << 20


def variables_in(file: str) -> dict[str, str]:
    """What the file says; nothing where none is named."""
    if not file:
        return {}
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(_LIMIT_BYTES)
    except OSError as error:
        raise ConfigError("run.variables", file, f"cannot be read: {error.strerror}; check the path") from None
    return decode_variables(text, file)
