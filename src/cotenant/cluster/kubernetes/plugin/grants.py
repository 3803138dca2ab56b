"""The grants of claims: a directory per claim with the token of its pod, which its containers mount."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cotenant.cluster.kubernetes.plugin.host_files import GRANT
from cotenant.errors import WorldError
from cotenant.node.daemon.tokens import LOOKUP_TOKEN
from cotenant.runner.atomic_file import read_limited, write_atomically

_GRANT_LIMIT_BYTES: Final = 16 << 10
_KEY: Final = "token = "
_GPUS: Final = "# gpus = "
"""A comment for the node; the plugin reads it to report all GPUs of a claim."""
LOOKUP_NAME: Final = "pod"
"""The name of the grant of the device plugin, which all pods have in common."""


class GrantDirectory:
    """The grants on the host; they are the plugin's only state, so a restart of the plugin loses nothing."""

    def __init__(self, directory: Path) -> None:
        """Use this directory, which only root may enter; containers see their own part of it."""
        self._directory = directory

    def path(self, name: str) -> Path:
        """Return the directory of a claim, or of the device plugin."""
        return self._directory / name

    def write(self, name: str, token: str, gpus: Sequence[str] = ()) -> bool:
        """Write a token, unless it is there already; return whether it was written."""
        directory, comment = self.path(name), f"{_GPUS}{' '.join(gpus)}\n" if gpus else ""
        data = f"{comment}{_KEY}{token}\n".encode()
        if read_limited(directory / GRANT, _GRANT_LIMIT_BYTES) == data:
            return False
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o755, exist_ok=True)
            directory.chmod(0o755)  # users other than root read it in the container
            write_atomically(directory / GRANT, data, 0o644)
        except OSError as error:
            raise WorldError(f"cannot write the grant {directory}: {error.strerror}; repair its directory") from None
        return True

    def write_lookup(self) -> Path:
        """Write the grant with which a process asks for what its pod may use; return its directory."""
        self.write(LOOKUP_NAME, LOOKUP_TOKEN)
        return self.path(LOOKUP_NAME)

    def token(self, name: str) -> str:
        """Return the token of a claim; empty: it has none."""
        return self._value(name, _KEY)

    def gpus(self, name: str) -> list[str]:
        """Return the uuids of the GPUs of a claim that has several."""
        return self._value(name, _GPUS).split()

    def _value(self, name: str, key: str) -> str:
        data = read_limited(self.path(name) / GRANT, _GRANT_LIMIT_BYTES) or b""
        lines = data.decode("utf-8", "replace").splitlines()
        return next((line.removeprefix(key) for line in lines if line.startswith(key)), "")

    def remove(self, name: str) -> None:
        """Remove the directory of a claim."""
        try:
            shutil.rmtree(self.path(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise WorldError(f"cannot remove {self.path(name)}: {error.strerror}; repair its directory") from None

    def claims(self) -> Iterator[str]:
        """Yield the uids of the claims that have a grant."""
        with contextlib.suppress(FileNotFoundError):
            yield from sorted(path.name for path in self._directory.iterdir() if path.name != LOOKUP_NAME)
