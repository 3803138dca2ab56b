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
    """The file of one node, its only writer, since the node holds the lock of the directory."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """Use this path; nothing is read yet."""
        self._path = path
        self._report = report
        self._lock = threading.Lock()
        self._number = -1
        self._is_ours = True

    def read(self) -> dict[Program, DiurnalProfile]:
        """Return the profiles of an earlier node; of a damaged file, the readable part. Raises nothing."""
        try:
            with self._path.open("rb") as file:
                data = file.read(LIMIT_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            known, why = dict[Program, DiurnalProfile](), f"cannot be read ({error.strerror})"
        else:
            known, why = decode_profiles(data)
        if why:
            self._rename_damaged(known, why)
        return known

    def write(self, known: Mapping[Program, DiurnalProfile], number: int) -> None:
        """Replace the file, unless a write with a higher number has been made; raise `OSError`.

        At the end of a node two threads may write.
        """
        if not self._is_ours:
            return
        data = encode_profiles(known)
        with self._lock:
            if number <= self._number:
                return
            write_atomically(self._path, data)
            sync_directory(self._path.parent)
            self._number = number

    def _rename_damaged(self, known: Mapping[Program, DiurnalProfile], why: str) -> None:
        """Rename the damaged file and write the readable part at once, for the next node."""
        renamed = _unused(self._path)
        consequence = (
            f"the node continues with the {counted(len(known), 'program')} that can be read"
            if known
            else "diurnal profiles are learned anew"
        )
        try:
            self._path.rename(renamed)
            if known:
                self.write(known, 0)
        except OSError as error:
            self._is_ours = renamed.exists()  # a file that cannot be renamed is not overwritten either
            self._report(f"{self._path} {why}, and could not be renamed ({error.strerror}); {consequence}")
            return
        self._report(f"{self._path} {why}: renamed to {renamed.name}; {consequence}")


def _unused(path: Path) -> Path:
    number = 1
    while (renamed := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return renamed
