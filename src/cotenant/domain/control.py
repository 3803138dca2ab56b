"""How did the online work of a device fare within one short window, and what is changed because of it?

Latencies are counted in buckets that grow with them, as the pages of tenants count them (native/gate/request.h): 16 per
power of two, so that a bucket is at most 1/16 wider than the latencies in it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import MILLISECOND_NS, Duration, Instant
from cotenant.domain.protect import WHY_LIMIT
from cotenant.domain.value import Value

_PARTS_BITS: Final = 4
_FIRST_BITS: Final = 14
_LAST_BITS: Final = 36
REQUEST_BUCKETS: Final = (_LAST_BITS - _FIRST_BITS) << _PARTS_BITS
"""From 2^14 ns (16 us) to 2^36 ns (69 s); what is shorter or longer is counted in the first or the last."""

Detail = Annotated[str, msgspec.Meta(max_length=WHY_LIMIT)]
Ppm = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_PPM)]
Sparse = tuple[tuple[int, int], ...]
"""Buckets and how many are in each, ascending."""


def bucket_of(latency_ns: int) -> int:
    """The bucket that counts this latency."""
    bits = latency_ns.bit_length() - 1
    if bits < _FIRST_BITS:
        return 0
    if bits >= _LAST_BITS:
        return REQUEST_BUCKETS - 1
    return ((bits - _FIRST_BITS - 1) << _PARTS_BITS) + (latency_ns >> (bits - _PARTS_BITS))


def bounds_of(bucket: int) -> tuple[int, int]:
    """The latencies of a bucket: from the first, up to but without the second."""
    octave, part = divmod(bucket, 1 << _PARTS_BITS)
    step = 1 << (octave + _FIRST_BITS - _PARTS_BITS)
    begin = step * (part + (1 << _PARTS_BITS))
    return begin, begin + step


def quantile_of(buckets: Iterable[tuple[int, float]], fraction: float) -> float:
    """The latency that this part of the requests did not exceed, in between by proportion; 0 where there were none."""
    counted = [(bucket, count) for bucket, count in buckets if count > 0]
    rank = fraction * sum(count for _, count in counted)
    below = 0.0
    for bucket, count in counted:
        if below + count >= rank:
            begin, end = bounds_of(bucket)
            return begin + (end - begin) * max(rank - below, 0.0) / count
        below += count
    return float(bounds_of(counted[-1][0])[1]) if counted else 0.0


def count_above(buckets: Iterable[tuple[int, float]], latency_ns: float) -> float:
    """How many took longer than this, those of its own bucket by proportion."""
    above = 0.0
    for bucket, count in buckets:
        begin, end = bounds_of(bucket)
        above += count * min(max((end - latency_ns) / (end - begin), 0.0), 1.0)
    return above


class TenantWindow(Value, frozen=True):
    """One tenant within one window: what its page's running sums grew by."""

    slot: int
    generation: int
    online: bool
    slo_ns: Duration = 0
    """The latency that it was promised; 0: none."""
    requests: int = 0
    """Requests that ended within the window."""
    over: int = 0
    """Of these, those that took longer than the objective."""
    sum_ns: int = 0
    """Their latencies in sum."""
    latencies: Sparse = ()
    active_ns: Duration = 0
    """For how long it had work, or was about to have some."""
    device_ns: Duration = 0
    """Device time of what passed, as expected."""
    waited_ns: Duration = 0
    """What its launches waited at the gate."""
    lost_ns: Duration = 0
    """By how much it held up those above it."""
    oldest_ns: Duration = 0
    """How long the request under way has lasted at the end of the window; 0: none."""
    priority: int = 0
    """Those of one priority are equals."""
    limit_ppm: Ppm = 0
    """The share that its user gave it among them; 0: none."""

    @property
    def promised(self) -> bool:
        """Whether this is somebody whose latency is to be kept."""
        return self.online and self.slo_ns > 0


class DeviceWindow(Value, frozen=True):
    """Everybody on one device within one window."""

    gpu: int
    begin_ns: Instant
    end_ns: Instant
    tenants: tuple[TenantWindow, ...] = ()


class Cause(enum.Enum):
    """Why the share of online work is changed; the list is closed, so that causes can be counted."""

    JOINED = "joined"
    LEFT = "left"
    VIOLATED = "violated"
    STUCK = "stuck"
    NEAR = "near"
    SATURATED = "saturated"
    LOAD_UP = "load up"
    LOAD_DOWN = "load down"
    ROOM = "room"
    PROBE = "probe"
    BEYOND_REACH = "beyond reach"
    DIVIDED = "divided"
    OBJECTIVE = "objective"


class Adjustment(Value, frozen=True):
    """What online work of a device keeps from now on, and why."""

    gpu: int
    online_ppm: Ppm
    cause: Cause
    detail: Detail = ""
    """One sentence with the figures."""
    shares: tuple[tuple[int, int], ...] = ()
    """Slot and share among equals, of those whose users gave them none."""
    slot: int = -1
    generation: int = 0
    """The tenant that decided it; -1: none in particular."""


class Dial(Value, frozen=True):
    """What was last said of a device whose online tenants have objectives."""

    gpu: int
    online_ppm: int
    shares: tuple[tuple[int, int], ...] = ()
    """Slot and share among equals, of those who are still there."""


class ControlLimits(Value, frozen=True):
    """Within which limits shares are adjusted. The figures are our choice; docs/control.md says why these."""

    period_ns: Duration = 100 * MILLISECOND_NS
    """How often the tenants of a device are looked at."""
    adjust: str = "feedback"
    """By which policy; "off": by none."""
    quantile_ppm: Ppm = 990_000
    """The part of the requests that must keep the objective."""
    headroom_ppm: Ppm = 100_000
    """Of the objective, what is left free for what nobody foresaw."""
    least_ppm: Ppm = 100_000
    """What online work keeps at least while it is active."""
    most_ppm: Ppm = 980_000
    """What it keeps at most: the rest is offline's, whatever happens."""
    mps_share: bool = False
    """Whether offline programs that start under MPS get no more SMs than online leaves."""

    @property
    def enabled(self) -> bool:
        """Whether anything is adjusted at all."""
        return self.adjust != "off"
