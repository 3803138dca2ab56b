"""The version of a device's ledger: whatever changes what a tenant holds changes it, as readers skip equal versions."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.live_grants import LiveGrantPages
from cotenant.gate.live_ledgers import LiveLedgers
from cotenant.gate.process_pages import PROCESS_BYTES, ProcessLedger, ShareRole

SLOTS = range(3)
INDEXES = range(4)
SIZE = 1 << 20
Step = tuple[int, ...]


@pytest.fixture(scope="module")
def grants() -> Iterator[LiveGrantPages]:
    pages = LiveGrantPages()
    for slot in SLOTS:
        pages.publish(Grant(slot, 1, Kind.OFFLINE, 7, 0, 0, 0, 0), 1)
    yield pages
    pages.close()


class Ledgers:
    """One device, and the operations of the node on it with small arguments."""

    def __init__(self, grants: LiveGrantPages) -> None:
        self.ledgers = LiveLedgers(grants)
        self.versions = 0
        self.present: set[int] = set()
        self.steps: tuple[Callable[[int, int, int], None], ...] = (
            lambda slot, _, __: self.ledgers.grant(0, slot, 1),
            self._begin,
            self._end,
            self._observe,
            self._measure,
            lambda slot, index, amount: self.ledgers.settle(0, lambda pid: (pid + slot + index + amount) % 2 == 0),
            lambda slot, _, amount: self.ledgers.set_measured(0, slot, amount * SIZE, amount * SIZE, 0, 0),
            lambda slot, index, _: self.ledgers.keep_only(0, dict.fromkeys(SLOTS[: slot + index], 1)),
        )

    def state(self) -> list[tuple[int, int, bool]]:
        """Return what readers derive from the ledger."""
        ledgers = self.ledgers
        return [(ledgers.held(0, slot), ledgers.reclaimable_bytes_of(0, slot), ledgers.has_ended(0)) for slot in SLOTS]

    def _begin(self, slot: int, index: int, _: int) -> None:
        if index not in self.present:
            self.present.add(index)
            self.ledgers.begin(0, index, index + 1, (slot, 1), 100 + index)

    def _end(self, _: int, index: int, __: int) -> None:
        self.present.discard(index)
        self.ledgers.end(0, index, bytes(PROCESS_BYTES))

    def _observe(self, role: int, index: int, amount: int) -> None:
        if index in self.present:
            self.versions += 1
            shares = ((list(ShareRole)[role], 7, amount * SIZE),) if amount % 2 else ()
            amounts = (amount * SIZE, SIZE, self.versions, 0, self.versions, self.versions, 0, 0, 0, 0, 1, 0)
            self.ledgers.observe(0, index, ProcessLedger(index + 1, *amounts, shares))

    def _measure(self, _: int, index: int, amount: int) -> None:
        ledger = self.ledgers.ledger(0, index) if index in self.present else None
        if ledger is not None:
            self.ledgers.measure(0, index, ledger, amount * SIZE)


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(0, 3), st.integers(0, 5)), max_size=40),
)
def test_every_change_of_what_tenants_hold_changes_the_version(grants: LiveGrantPages, steps: list[Step]) -> None:
    device = Ledgers(grants)
    before, version = device.state(), device.ledgers.version(0)
    for number, slot, index, amount in steps:
        device.steps[number](slot, index, amount)
        after = device.state()
        if after != before:
            assert device.ledgers.version(0) != version, (number, before, after)
        before, version = after, device.ledgers.version(0)
