"""Where does a brain keep what? In one directory of its own, below the state directory."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cotenant.errors import WorldError
from cotenant.live.cluster.identity import Identity, read_identity
from cotenant.live.directory import Places


class BrainPlaces(msgspec.Struct, frozen=True):
    """The directory and what is in it."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Held by the one brain of this directory."""
        return self.folder / "brain.lock"

    @property
    def journal(self) -> Path:
        """The record of every turn."""
        return self.folder / "journal"

    @property
    def clock(self) -> Path:
        """The offset of the brain's clock."""
        return self.folder / "clock"

    @property
    def register(self) -> Path:
        """Tokens, and whose certificates count."""
        return self.folder / "register.json"

    @property
    def brain(self) -> Path:
        """The brain's own identity."""
        return self.folder / "brain.pem"

    @property
    def operator(self) -> Path:
        """That of whoever may read this directory."""
        return self.folder / "operator.pem"

    @property
    def log(self) -> Path:
        """What a brain that was started in the background prints."""
        return self.folder / "brain.log"


def brain_places(places: Places) -> BrainPlaces:
    """The brain's directory of this machine and user."""
    return BrainPlaces(places.state / "cluster")


def operator_of(places: Places) -> Identity:
    """Who operates the brain of this directory."""
    path = brain_places(places).operator
    if not path.exists():
        raise WorldError(
            f"no brain was ever started on {places.state}; start one with: cotenant cluster start, or name it with "
            "--state; from another machine, name your identity with --identity"
        )
    return read_identity(path)
