"""The file of diurnal profiles: written atomically; a damaged file is renamed and reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from cotenant.node.diurnal_format import LIMIT_BYTES, decode_profiles, encode_profiles
from cotenant.predict.diurnal_profile import DiurnalProfile, Program
from cotenant.runner.atomic_file import sync_directory, write_atomically
from cotenant.units.text import counted


class DiurnalFile:
    """The file of one node, which is its only writer, since it holds the lock of the directory."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """Use this path; nothing is read yet."""
        self._path = path
        self._report = report
        self._lock = threading.Lock()
        self._last_written = -1
        self._may_overwrite = True

    def read(self) -> dict[Program, DiurnalProfile]:
        """Return the profiles of an earlier node; of a damaged file, the readable part. Raises nothing."""
        try:
            with self._path.open("rb") as file:
                data = file.read(LIMIT_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            profiles, why = dict[Program, DiurnalProfile](), f"cannot be read ({error.strerror})"
        else:
            profiles, why = decode_profiles(data)
        if why:
            self._rename_damaged(profiles, why)
        return profiles

    def write(self, profiles: Mapping[Program, DiurnalProfile], number: int) -> None:
        """Replace the file, unless a write with a higher number has been made; raise `OSError`.

        Two threads may write when the node ends.
        """
        if not self._may_overwrite:
            return
        data = encode_profiles(profiles)
        with self._lock:
            if number <= self._last_written:
                return
            write_atomically(self._path, data)
            sync_directory(self._path.parent)
            self._last_written = number

    def _rename_damaged(self, profiles: Mapping[Program, DiurnalProfile], why: str) -> None:
        """Rename the damaged file and write the readable part at once, for the next node."""
        renamed = _unused_name(self._path)
        consequence = (
            f"the node continues with the {counted(len(profiles), 'program')} that can be read"
            if profiles
            else "diurnal profiles are learned anew"
        )
        try:
            self._path.rename(renamed)
            if profiles:
                self.write(profiles, 0)
        except OSError as error:
            self._may_overwrite = renamed.exists()  # a file that cannot be renamed is not overwritten either
            self._report(f"{self._path} {why}, and could not be renamed ({error.strerror}); {consequence}")
            return
        self._report(f"{self._path} {why}: renamed to {renamed.name}; {consequence}")


def _unused_name(path: Path) -> Path:
    number = 1
    while (renamed := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return renamed
