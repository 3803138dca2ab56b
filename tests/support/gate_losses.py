"""The measured loss of a higher-priority tenant and its comparison with the charges, in plain Python."""

from __future__ import annotations

from tests.support.gate_sums import (
    ASTRAY,
    CLEAN_MOST,
    CLEAN_WANTED,
    ERROR_PART,
    FAR,
    MEMORY,
    MET_MOST,
    PPM,
    PRIOR,
    SCALE_LEAST,
    SCALE_MOST,
    Page,
    quotient,
)

Key = tuple[int, int]


class Losses:
    """The losses of one process: measured by its own waits, and reported by higher priorities."""

    def __init__(self) -> None:
        self.begin = self.end = self.clean = self.spread = self.count = self.met = 0
        self.unsure = self.is_begun = False
        self.charged_sum = self.lost = self.charged = self.ppm = 0
        self.pages: dict[Key, Page] = {}
        self.reported: dict[Key, tuple[int, int]] = {}
        self.lost_by: dict[Key, int] = {}

    def entry(self, above: dict[Key, Page]) -> None:
        self.pages = above
        known = self.reported
        self.reported = {key: known.get(key, (page["loss_reports"], page["sequence"])) for key, page in above.items()}
        self.lost_by = {key: self.lost_by.get(key, lost_of(key, page)) for key, page in above.items()}

    # ---- the holder

    def announced(self, expect: int, now: int) -> None:
        if not self.begin:
            self.begin, self.unsure = now, False
        self.end = max(self.end, now) + expect
        self.unsure = self.unsure or not expect

    def drained(self, page: Page, asked_until: int, now: int) -> None:
        begin, waits = self.begin, page["waits_ns"]
        late = now - max(self.end, waits)
        self.begin = self.end = 0
        if not begin or not waits or self.unsure or abs(late) > FAR:
            return
        if asked_until < begin:
            self.count = min(self.count + 1, CLEAN_MOST)
            apart = abs(late - self.clean)
            self.spread = 0 if self.count == 1 else self.spread + quotient(apart - self.spread, self.count - 1)
            self.clean += quotient(late - self.clean, self.count)
            self.met = page["clean_wanted_ns"] = 0
            return
        self.met += 1
        if self.met == CLEAN_WANTED or (not self.count and self.met % CLEAN_WANTED == 1):
            page["clean_wanted_ns"] = now
        if self.count and self.met < MET_MOST:
            page["lost_ns"] += late - (self.clean - quotient(self.spread, ERROR_PART))
            page["loss_reports"] += 1

    # ---- lower priorities

    def look(self, charged_sum: int) -> None:
        lost_by = {key: lost_of(key, page) for key, page in self.pages.items()}
        lost, charged = sum(lost_by.values()) - sum(self.lost_by.values()), charged_sum - self.charged_sum
        is_astray = not 0 <= charged <= ASTRAY or abs(lost) > ASTRAY
        if self.is_begun and not is_astray:
            if any(
                self.reported[key] == (page["loss_reports"], self.reported[key][1]) != self.state(key)
                for key, page in self.pages.items()
            ):
                return
            self.lost, self.charged = min(max(self.lost + lost, -ASTRAY), ASTRAY), self.charged + charged
            if self.charged > MEMORY:
                self.lost, self.charged = quotient(self.lost, 2), self.charged // 2
            ppm = max(self.lost + PRIOR, 0) * 1000 // ((self.charged + PRIOR) // 1000)
            self.ppm = min(max(ppm, SCALE_LEAST), SCALE_MOST)
        else:
            self.is_begun, self.ppm, self.lost, self.charged = True, PPM, 0, 0
        self.lost_by, self.charged_sum = lost_by, charged_sum
        self.reported = {key: self.state(key) for key in self.pages}

    def state(self, key: Key) -> tuple[int, int]:
        return self.pages[key]["loss_reports"], self.pages[key]["sequence"]

    def scaled(self, thought: int) -> int:
        if not self.ppm or thought > (2**64 - 1) // SCALE_MOST:
            return thought
        return max(thought * self.ppm // PPM, int(thought > 0))


def lost_of(key: Key, page: Page) -> int:
    """Return the loss that a higher priority reported; 0 while the page belongs to another generation."""
    return page["lost_ns"] if page["generation"] == key[1] else 0
