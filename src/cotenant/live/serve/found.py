"""What is a model before it is loaded? A name, a version, and the files that say what it is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """A model that is there to be loaded, or the reason why it cannot be."""

    name: str
    version: str
    path: Path
    config: Path
    triton: Path | None = None
    broken: str = ""
