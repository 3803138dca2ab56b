"""What does a policy of adjustment answer to? One window at a time, with what is foreseen for the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from cotenant.domain.control import Cause, DeviceWindow
from cotenant.domain.estimate import Estimate
from cotenant.domain.instant import Instant


class Foreseen(NamedTuple):
    """What is expected of a tenant before it happens."""

    load: Estimate | None = None
    """Requests of the next window."""
    need_ppm: Estimate | None = None
    """The smallest share of online work with which it keeps its objective."""
    peak_ppm: int | None = None
    """The same if requests come as densely as at the peaks of late; the whole device where even that does not do."""
    mild_ppm: int | None = None
    """With this share, what it loses to those below is hardly a part of its objective, however near that is."""


class Verdict(NamedTuple):
    """Online work keeps this much from now on; slot -1: because of nobody in particular."""

    online_ppm: int
    cause: Cause
    detail: str
    slot: int = -1
    generation: int = 0


class Adjuster(Protocol):
    """One device's adjustment: its memory is its own, and moves by `step` alone."""

    online_ppm: int
    """What online work keeps now."""

    def step(self, window: DeviceWindow, foreseen: Mapping[int, Foreseen], now: Instant) -> Verdict | None:
        """What changes after this window; None: nothing."""
        ...

    def needs(self) -> dict[int, int]:
        """By slot, the share that each online tenant with an objective seems to need; 0: not known yet.

        Empty where nothing is to be divided among them.
        """
        ...

    def why(self) -> str:
        """Why it is as it is, in one sentence."""
        ...
