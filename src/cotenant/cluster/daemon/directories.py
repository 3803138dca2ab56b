"""Files of a controller in its own directory below the state directory."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cotenant.cluster.daemon.identity import Identity, read_identity
from cotenant.errors import WorldError
from cotenant.node.directories import Directories


class ControllerPaths(msgspec.Struct, frozen=True):
    """The directory of a controller, and its files."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Held by the one controller of this directory."""
        return self.folder / "controller.lock"

    @property
    def journal(self) -> Path:
        """The record of every turn."""
        return self.folder / "journal"

    @property
    def clock(self) -> Path:
        """The offset of the controller's clock."""
        return self.folder / "clock"

    @property
    def registry(self) -> Path:
        """Tokens, and whose certificates count."""
        return self.folder / "register.json"

    @property
    def controller(self) -> Path:
        """The controller's own identity."""
        return self.folder / "controller.pem"

    @property
    def operator(self) -> Path:
        """That of a user who may read this directory."""
        return self.folder / "operator.pem"

    @property
    def log(self) -> Path:
        """What a controller that was started in the background prints."""
        return self.folder / "controller.log"


def controller_paths(directories: Directories) -> ControllerPaths:
    """The controller's directory of this machine and user."""
    return ControllerPaths(directories.state / "cluster")


def operator_of(directories: Directories) -> Identity:
    """Who operates the controller of this directory."""
    path = controller_paths(directories).operator
    if not path.exists():
        raise WorldError(
            f"no controller was ever started in {directories.state}; start one with: cotenant cluster start, or "
            "name it with --state-dir; from another machine, name your identity with --identity"
        )
    return read_identity(path)
