"""What is a model before it is loaded? A name, a version, and the files that say what it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, NamedTuple

READING: Final = threading.Lock()
"""One thread at a time reads what files say of models: msgspec learns a type when it is first used, and two threads that
have it do so at once end the process (seen with msgspec 0.20)."""


class Found(NamedTuple):
    """A model that is there to be loaded, or the reason why it cannot be."""

    name: str
    version: str
    path: Path
    config: Path
    triton: Path | None = None
    broken: str = ""
