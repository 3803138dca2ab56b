"""What is a program to find in its environment? A JSON object of texts in a file, which no command line shows."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cotenant.errors import ConfigError


def encode_variables(variables: Mapping[str, str]) -> bytes:
    """As a file has it."""
    return msgspec.json.encode(dict(variables))


def decode_variables(text: bytes, where: str) -> dict[str, str]:
    """What such a file says; refuses names and values that no environment can have."""
    try:
        found = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError("run.variables", where, f"write a JSON object of texts: {error}") from None
    for name, value in found.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError("run.variables", where, f"no environment can have a variable {name!r} with that value")
    return found
