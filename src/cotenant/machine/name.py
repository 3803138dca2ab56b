"""What is a tenant called that gave no name?"""

from __future__ import annotations

import functools
import re
from collections.abc import Container
from typing import Final

_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


def invent_name(command: str, slot: int, taken: Container[str]) -> str:
    """After its program and its slot, and not as anybody else."""
    base = program_of(command)
    name = f"{base}-{slot}"
    extra = 1
    while name in taken:
        extra += 1
        name = f"{base}-{slot}-{extra}"
    return name


@functools.lru_cache(maxsize=1024)
def program_of(command: str) -> str:
    """The program's name as far as a tenant's name allows it."""
    words = command.split(maxsplit=1)
    base = _NOT_IN_NAME.sub("-", words[0].rsplit("/", 1)[-1]).strip("-._")[:32] if words else ""
    return base or "tenant"
