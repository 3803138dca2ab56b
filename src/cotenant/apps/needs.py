"""Are the packages there that a command needs, which not everybody installs?"""

from __future__ import annotations

import importlib.util

from cotenant.errors import WorldError


def need_packages(what: str, remedy: str, *packages: str) -> None:
    """Refuse in one sentence if one is missing."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise WorldError(f"{what} needs the package {name}, which is not installed: {remedy}")
