"""What a container gets to use a GPU: variables, mounts, device nodes and hooks, and their form as a CDI spec.

The format is that of CDI 0.5.0 (github.com/cncf-tags/container-device-interface, SPEC.md), which containerd 1.7 and
CRI-O 1.23 read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.errors import WorldError
from cotenant.runner.atomic_file import read_limited, write_atomically

CDI_VERSION: Final = "0.5.0"
CDI_KIND: Final = f"{names.GROUP}/gpu"
_PREFIX: Final = f"{names.GROUP}-claim-"
_SPEC_LIMIT_BYTES: Final = 1 << 20
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")


class Mount(msgspec.Struct, frozen=True):
    """A path of the host in the container."""

    host: str
    container: str
    is_read_only: bool = True


class ImageCheck(msgspec.Struct, frozen=True):
    """A program that the container runtime runs on the host before it starts the container."""

    path: str
    arguments: tuple[str, ...]


class ContainerEdits(msgspec.Struct, frozen=True):
    """Changes of a container."""

    variables: dict[str, str]
    mounts: tuple[Mount, ...]
    check: ImageCheck | None = None
    """It must succeed for the container to start."""

    def cdi(self) -> dict[str, Any]:
        """Return the edits in the notation of CDI."""
        edits: dict[str, Any] = {
            "env": [f"{name}={value}" for name, value in sorted(self.variables.items())],
            "mounts": [
                {
                    "hostPath": mount.host,
                    "containerPath": mount.container,
                    "options": ["ro" if mount.is_read_only else "rw", "nosuid", "nodev", "bind"],
                }
                for mount in self.mounts
            ],
        }
        if self.check is not None:
            # Not createContainer: that one runs in the user namespace of the container, which cannot read its config.
            hook = {"hookName": "createRuntime", "path": self.check.path, "args": list(self.check.arguments)}
            edits["hooks"] = [{**hook, "timeout": 30}]
        return edits


def device_id(claim_uid: str) -> str:
    """Return the CDI name of the device of a claim."""
    return f"{CDI_KIND}={device_name(claim_uid)}"


def device_name(claim_uid: str) -> str:
    """Return the name of the device of a claim within its spec."""
    return f"claim-{claim_uid}"


def is_uid(text: str) -> bool:
    """Return whether a text may be part of the name of a file, as the uid of a Kubernetes object may."""
    return _UID.fullmatch(text) is not None


class CdiDirectory:
    """The directory that the container runtime reads CDI specs from; one file per claim."""

    def __init__(self, directory: Path) -> None:
        """Use this directory."""
        self._directory = directory

    def path(self, claim_uid: str) -> Path:
        """Return the path of a claim's spec."""
        return self._directory / f"{_PREFIX}{claim_uid}.json"

    def write(self, claim_uid: str, edits: ContainerEdits) -> bool:
        """Write the spec of a claim, unless it is there already; return whether it was written."""
        spec = {
            "cdiVersion": CDI_VERSION,
            "kind": CDI_KIND,
            "devices": [{"name": device_name(claim_uid), "containerEdits": edits.cdi()}],
        }
        data = msgspec.json.format(msgspec.json.encode(spec), indent=2)
        path = self.path(claim_uid)
        if read_limited(path, _SPEC_LIMIT_BYTES) == data:
            return False
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomically(path, data, 0o644)
        except OSError as error:
            raise WorldError(f"cannot write the CDI spec {path}: {error.strerror}; repair its directory") from None
        return True

    def has(self, claim_uid: str) -> bool:
        """Return whether a claim has a spec."""
        return self.path(claim_uid).exists()

    def remove(self, claim_uid: str) -> None:
        """Remove the spec of a claim, if it has one."""
        try:
            self.path(claim_uid).unlink(missing_ok=True)
        except OSError as error:
            detail = f"cannot remove the CDI spec {self.path(claim_uid)}: {error.strerror}; repair its directory"
            raise WorldError(detail) from None

    def claims(self) -> Iterator[str]:
        """Yield the uids of the claims that have a spec."""
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self._directory.glob(f"{_PREFIX}*.json")):
                yield path.name.removeprefix(_PREFIX).removesuffix(".json")
