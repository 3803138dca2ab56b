"""How far is a job? It says so itself, in a file: parts that are done and safe, of parts in all, as in "120/1000"."""

from __future__ import annotations

import re
from typing import Final

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.value import Value

PROGRESS_VARIABLE: Final = "COTENANT_PROGRESS"
"""In a job's environment: the file that it may write."""
PROGRESS_LIMIT_BYTES: Final = 128
_WRITTEN: Final = re.compile(rb"\A\s*([0-9]{1,18})\s*/\s*([0-9]{1,18})\s*\n\Z")  # the newline says that it is all there


class Progress(Value, frozen=True):
    """Parts of whatever the job counts in: steps, samples, epochs."""

    done: int
    whole: int

    @property
    def ppm(self) -> int:
        """Of the whole job; rounded down, so that only what is all done is all of it."""
        return self.done * WHOLE_PPM // self.whole

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.done == self.whole


def decode_progress(text: bytes) -> Progress | None:
    """What such a file says; None for one that says nothing sensible, as one that is just being written."""
    match = _WRITTEN.match(text)
    if match is None:
        return None
    done, whole = int(match[1]), int(match[2])
    return Progress(done, whole) if whole > 0 and done <= whole else None
