"""Progress of a job, which the job writes to a file as completed and total units, such as "120/1000"."""

from __future__ import annotations

import re
from typing import Final

from cotenant.units.share import WHOLE_PPM
from cotenant.units.value import Value

PROGRESS_VARIABLE: Final = "COTENANT_PROGRESS"
"""Environment variable that names the progress file of a job."""
PROGRESS_LIMIT_BYTES: Final = 128
_WRITTEN: Final = re.compile(rb"\A\s*([0-9]{1,18})\s*/\s*([0-9]{1,18})\s*\n\Z")  # the newline marks a complete write


class Progress(Value, frozen=True):
    """Units of whatever the job counts in: steps, samples, epochs."""

    done: int
    whole: int

    @property
    def ppm(self) -> int:
        """Return the completed part in millionths, rounded down so that only a complete job has all of them."""
        return self.done * WHOLE_PPM // self.whole

    @property
    def is_complete(self) -> bool:
        """Return whether all units are done."""
        return self.done == self.whole


def decode_progress(text: bytes) -> Progress | None:
    """Return the progress in a file; None for an incomplete or invalid file."""
    match = _WRITTEN.match(text)
    if match is None:
        return None
    done, whole = int(match[1]), int(match[2])
    return Progress(done, whole) if whole > 0 and done <= whole else None
