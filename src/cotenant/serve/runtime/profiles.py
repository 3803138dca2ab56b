"""Profile cache: one file per model hash and device."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from cotenant.errors import ConfigError
from cotenant.runner.machine import processor_name
from cotenant.serve.model_profile_format import ModelProfile, decode_model_profile, encode_model_profile

Report = Callable[[str], None]


def model_hash(path: Path, name: str) -> str:
    """Return the hash of the file, and of the model's name if the file may contain several models."""
    digest = hashlib.sha256(b"" if path.suffix == ".onnx" else name.encode() + b"\0")
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def cpu_identity(cores: int) -> str:
    """Return the processor's name, the number of cores and the version of ONNX Runtime."""
    return f"{processor_name()}, {cores} cores, onnxruntime {importlib.metadata.version('onnxruntime')}"


class ProfileCache:
    """A directory of profiles. A profile that cannot be read is reported and ignored."""

    def __init__(self, folder: Path, report: Report) -> None:
        """The directory is created on the first write."""
        self.folder = folder
        self._report = report

    def find(self, file_hash: str, device: str) -> ModelProfile | None:
        """Return the profile of a model on a device, or None."""
        path = self._path(file_hash, device)
        try:
            profile = decode_model_profile(path.read_bytes(), str(path))
        except FileNotFoundError:
            return None
        except (OSError, ConfigError) as error:
            self._report(f"a profile is ignored: {error}")
            return None
        return profile if (profile.model_hash, profile.device) == (file_hash, device) else None

    def keep(self, profile: ModelProfile) -> Path:
        """Store a profile and replace an existing one."""
        path = self._path(profile.model_hash, profile.device)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                file.write(encode_model_profile(profile))
            os.replace(file.name, path)  # noqa: PTH105  atomic for concurrent readers
        except OSError as error:
            raise ConfigError("--profiles", str(self.folder), f"cannot be written: {error.strerror}") from None
        return path

    def _path(self, file_hash: str, device: str) -> Path:
        return self.folder / f"{file_hash[:24]}-{hashlib.sha256(device.encode()).hexdigest()[:8]}.json"
