"""Where is kept what is known of programs' days? One small file, whole or not at all; damage is set aside and said."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from cotenant.domain.day import Day, Program
from cotenant.format.days import LIMIT_BYTES, decode_days, encode_days
from cotenant.format.quantity import counted
from cotenant.live.whole import sync_directory, write_whole


class DaysFile:
    """The file of one node, which alone writes it: it holds the lock of the directory."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Read nothing yet."""
        self._path = path
        self._say = say
        self._lock = threading.Lock()
        self._number = -1
        self._is_ours = True

    def read(self) -> dict[Program, Day]:
        """What an earlier node kept; of a file that is not sound, what is. Nothing here ends a node."""
        try:
            with self._path.open("rb") as file:
                data = file.read(LIMIT_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            known, why = dict[Program, Day](), f"cannot be read ({error.strerror})"
        else:
            known, why = decode_days(data)
        if why:
            self._set_aside(known, why)
        return known

    def write(self, known: Mapping[Program, Day], number: int) -> None:
        """Keep this in place of what was there, unless something with a higher number is; raises `OSError`.

        At the end of a node two threads may be here.
        """
        if not self._is_ours:
            return
        data = encode_days(known)
        with self._lock:
            if number <= self._number:
                return
            write_whole(self._path, data)
            sync_directory(self._path.parent)
            self._number = number

    def _set_aside(self, known: Mapping[Program, Day], why: str) -> None:
        """What is sound is on the disk again at once: the next node should not have to look for it."""
        aside = _unused(self._path)
        left = (
            f"the node goes on with the {counted(len(known), 'program')} that can be read"
            if known
            else "times of day are learned anew"
        )
        try:
            self._path.rename(aside)
            if known:
                self.write(known, 0)
        except OSError as error:
            self._is_ours = aside.exists()  # what cannot be moved away is not written over either
            self._say(f"{self._path} {why}, and could not be set aside ({error.strerror}); {left}")
            return
        self._say(f"{self._path} {why}: set aside as {aside.name}; {left}")


def _unused(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside
