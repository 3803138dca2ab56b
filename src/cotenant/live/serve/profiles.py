"""Where are the profiles of models kept, and whose are they? By the model's hash and the device that it ran on."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from cotenant.errors import ConfigError
from cotenant.format.runtimes import Profiled, decode_profiled, encode_profiled

Tell = Callable[[str], None]


def model_hash(path: Path, name: str) -> str:
    """Of the file, and of the name where one file may have several models."""
    found = hashlib.sha256(b"" if path.suffix == ".onnx" else name.encode() + b"\0")
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def cpu_identity(cores: int) -> str:
    """This machine's processor, how many cores of it, and what runs models on them."""
    name = "a processor without a name"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {cores} cores, onnxruntime {importlib.metadata.version('onnxruntime')}"


class ProfileCache:
    """A folder of profiles. One that cannot be read is said and passed over, never fatal."""

    def __init__(self, folder: Path, say: Tell) -> None:
        """The folder is made when something is kept."""
        self.folder = folder
        self._say = say

    def find(self, hashed: str, device: str) -> Profiled | None:
        """The profile of a model on a device, if there is one."""
        path = self._path(hashed, device)
        try:
            found = decode_profiled(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except (OSError, ConfigError) as error:
            self._say(f"a profile is passed over: {error}")
            return None
        return found if (found.model_hash, found.device) == (hashed, device) else None

    def keep(self, profiled: Profiled) -> Path:
        """Keep it in place of what was there."""
        path = self._path(profiled.model_hash, profiled.device)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                file.write(encode_profiled(profiled))
            os.replace(file.name, path)  # noqa: PTH105  whole or not at all, also for those who read just now
        except OSError as error:
            raise ConfigError("--profiles", str(self.folder), f"cannot be written: {error.strerror}") from None
        return path

    def _path(self, hashed: str, device: str) -> Path:
        return self.folder / f"{hashed[:24]}-{hashlib.sha256(device.encode()).hexdigest()[:8]}.json"
