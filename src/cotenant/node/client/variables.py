"""The file of `cotenant run --variables`: a JSON object of variables for the program's environment.

A file keeps secrets off the command line, and the variables do not affect `cotenant run` itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError

_LIMIT_BYTES: Final = 16 << 20


def read_variables(file: str) -> dict[str, str]:
    """Return the variables of the file; none if no file is named."""
    if not file:
        return {}
    try:
        with Path(file).open("rb") as stream:
            text = stream.read(_LIMIT_BYTES)
    except OSError as error:
        raise ConfigError("run.variables", file, f"cannot be read: {error.strerror}; check the path") from None
    return decode_variables(text, file)


def decode_variables(text: bytes, where: str) -> dict[str, str]:
    """Return the variables of a file's content; refuse names and values that no environment can have."""
    try:
        variables = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError("run.variables", where, f"write a JSON object of texts: {error}") from None
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(
                "run.variables", where, f"an environment cannot contain the variable {name!r} with this value"
            )
    return variables
