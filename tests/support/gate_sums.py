"""Constants of the gate's rules and functions of single numbers."""

from __future__ import annotations

from typing import Final

from cotenant.gate.rules import GateEntry, GateRules

US: Final = 1000
MS: Final = 1000 * US
NEVER: Final = 2**64 - 1
TOP, FREE, GAP, LEAST, RISK, STUCK, BESIDE, LENT = range(8)
BUSY, TIGHT, DUE, BOUND, OTHER, PAUSED, CHANGED, DEBT, LIMIT, SHARE, CLEAN, SPACE = range(8, 20)
LEAD, DEPTH, LOOK = 60 * US, 100 * US, 50 * US
RISK_AFTER, BURST, HARD_DEBT, STUCK_AFTER = 10 * MS, 30 * MS, 120 * MS, 100 * MS
DEBT_MOST = FAR = 60_000 * MS
CLOSED, AGAIN, PAUSE_LOOK, PATIENCE_LEAST, WAITED_FOR = 2000 * MS, 2 * US, 5 * MS, 250 * US, 50 * US
SPARE, LOWER_BUSY_MOST, LOWER_BUSY_LOOK, LOWER_BUSY_FORGET = 20 * MS, 250 * MS, 20 * MS, 16
RECENT, PPM = 32, 10**6
DUTY, DUTY_LEAST, DUTY_START, IDLE_FIRST = 20 * MS, 30_000, 300_000, 500 * MS
CLEAN_MOST, CLEAN_WANTED, MET_MOST, ERROR_PART = 16, 512, 4096, 3
CLEAN_FOR, CLEAN_LOOK = 1000 * MS, 200 * US
MEMORY, PRIOR, ASTRAY = 4 * MS, 100 * US, 256 * MS
SCALE_LEAST, SCALE_MOST, DELAY_MOST = PPM // 64, 4 * PPM, 100 * PPM
AHEAD, WINDOW, LIMIT_LOOK, LATE = 4 * MS, 100 * MS, MS, 10 * MS
LIMIT_POLL, ASLEEP, LEAST_PART = 250 * US, 6 * MS, 250_000
HELD_MOST, HELD_FOR, KEPT_OUT = 1000 * MS, 2000 * MS, 16

LaunchRequest = tuple[int, ...]
"""expect, sure, low, high, may_fill, granularity, pieces, free; of one that can be cut also doubtful, blocks, wave"""
Page = dict[str, int]
Answer = tuple[int, int, int]

WORDS: Final = ("sequence", "at_ns", "quiet_ns", "next_ns", "busy_ns", "generation")
REQUEST_WORDS: Final = (
    *("latest_ns", "waits_ns", "wanted_ns", "kernel_count", "active_ns", "active_counted_ns", "asked_ns"),
    "unfinished_ns",
)
LIMITS: Final = (
    *("paid_ns", "paid_ppm", "over_ns", "part_ppm", "lost_ns", "loss_reports", "clean_wanted_ns"),
    *("owes_ns", "min_share_ns", "admitted_until_ns"),
)
COUNTS: Final = (
    *("launches", "device_ns", "filled_ns", "waits", "waited_ns", "overruns", "overrun_ns", "admitted", "submitted"),
    *("late", "late_ns", "stale", "forecasts", "early", "miss_ns", "confirmed", "stuck"),
)


def rank(entry: GateEntry) -> int:
    """Return the priority; a tenant that is ending ranks lowest."""
    return 10 if entry.ending else entry.priority


def earned_in(amount: int, ppm: int) -> int:
    return min(amount * PPM // ppm, DEBT_MOST) if ppm else CLOSED


def part_of(amount: int, ppm: int) -> int:
    return min(amount, 2**32 - 1) * min(ppm, PPM) // PPM


def quotient(dividend: int, divisor: int) -> int:
    """Divide as C does, rounding towards zero."""
    return dividend // divisor if (dividend < 0) == (divisor < 0) else -(-dividend // divisor)


def tenths_of(page: Page) -> int:
    """Return the mean number of kernels per launch, in tenths."""
    launches, pieces = page["launches"], page["kernel_count"]
    if not launches or pieces <= launches:
        return 10
    return min(10 * (pieces // launches) + pieces % launches // (launches // 10 + 1), 10 * (2**16 - 1))


def pace_of(page: Page) -> int:
    """Return the kernels per second of its latest launches."""
    known = min(page["launches"], RECENT - 2)
    span = page["at_ns"] - page.get(f"recent {(page['sequence'] - known + 1) % RECENT}", 0)
    if known < 2 or span <= 0:
        return 2**32 - 1
    return min((known - 1) * 10**8 * tenths_of(page) // span, 2**32 - 1)


def granularity_of_launch(pieces: int, granularity: int) -> int:
    return NEVER if max(pieces, granularity) >= 2**32 else pieces * granularity // 2


def loss_at(holder: Page, until: int, now: int) -> int:
    """Return the holder's mean loss if the work ends at `until`: it returns at any instant from next to latest."""
    begin = max(holder["next_ns"], now)
    over, width = max(until - begin, 0), max(holder["latest_ns"] - begin, now - holder["next_ns"], 0)
    if over >= width:
        return over - width // 2
    return over * over // width // 2 if over < 2**32 - 1 else over // 2


def new_page() -> Page:
    return dict.fromkeys((*WORDS, *REQUEST_WORDS, *LIMITS, *COUNTS, *(f"passed {reason}" for reason in range(16))), 0)


def with_ignored_priority(request: LaunchRequest, ignored_ppm: int) -> LaunchRequest:
    """Return the request with the mean time for which an arriving kernel of a holder waits for it; 0: until it ends."""
    expect, granularity = request[0], request[5]
    if not granularity or not ignored_ppm:
        return request
    rest = min(max(expect - granularity, 0), 2**32 - 1) * ignored_ppm // PPM
    mean = granularity + rest if ignored_ppm < PPM else 0
    return (*request[:5], mean, *request[6:])


def bound_of(rules: GateRules, granularity: int) -> int:
    """Return the bound of submitted work; for yielding work up to five times as much, by the allowed delay."""
    more_ppm = min(rules.delay_ppm, PPM) if granularity else 0
    return rules.bound_ns + 4 * rules.bound_ns * more_ppm // PPM


def depth_of(rules: GateRules, granularity: int) -> int:
    more_ppm = min(rules.delay_ppm, PPM) if granularity else 0
    return DEPTH + bound_of(rules, granularity) * more_ppm // PPM


def is_active(page: Page, patience_ns: int, now: int) -> bool:
    is_asking = page["wanted_ns"] != 0 and abs(now - page["asked_ns"]) <= LOOK
    work = max(page["busy_ns"] - page["at_ns"], 0)
    is_awaited = page["waits_ns"] > 0 and now - max(page["waits_ns"], page["busy_ns"]) <= min(
        16 * work + STUCK_AFTER, FAR
    )
    is_busy = page["busy_ns"] > now or is_awaited or page["unfinished_ns"] > now
    return page["sequence"] > 0 and (is_busy or (now < page["quiet_ns"] and not is_asking))
