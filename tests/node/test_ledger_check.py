"""The node checks what processes write, compares it with the device, and blames the tenant for what cannot be."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.gate.process_pages import PROCESS_BYTES, ShareRole
from cotenant.node.daemon.monitor.ledger_check import LedgerCheck
from cotenant.node.model.event import Event, MemoryRequested, TenantFaulted
from cotenant.node.model.fault import PageFault, Source
from cotenant.runner.clock import monotonic_ns
from cotenant.units.instant import SECOND_NS
from tests.support.process_pages import HookPages, Registry

pytestmark = pytest.mark.live

ENTRIES = {0: 1, 1: 1, 2: 1}
MOST = (1 << 64) - 1
PID = os.getpid()


class Checked:
    """A registry with one process of the offline tenant 1, and its check."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.hook, self.attached = self.registry.attach(1)
        self.posted: list[Event] = []
        self.check = LedgerCheck(0, self.registry.ledgers, self.registry.processes, self.posted.append)
        self.check.device_bytes = 16 << 30
        self.check.read(ENTRIES, 0)

    def read(self, now: int = 0, **words: int) -> list[Event]:
        """Read the pages after these changes; return what was posted since."""
        self.hook.write(**words)
        before = len(self.posted)
        self.check.read(ENTRIES, now)
        return self.posted[before:]

    def fault(self) -> PageFault | None:
        """Return the fault after two further readings."""
        events = [*self.read(), *self.read()]
        pages = [event for event in events if isinstance(event, TenantFaulted) and event.source == Source.PAGES.value]
        return PageFault(pages[0].code) if pages else None


@pytest.fixture
def checked() -> Iterator[Checked]:
    made = Checked()
    yield made
    made.registry.close()


# ---- reports -------------------------------------------------------------------------------------------------------


def test_memory_request_is_reported_at_once_and_repeated(checked: Checked) -> None:
    checked.check.free_bytes = 30
    request = MemoryRequested(1, 1, 700, ((0, 0), (1, 50), (2, 0)), 30, 0)
    assert checked.read(0, wanted_bytes=700, allocated_bytes=50) == [request]
    assert checked.read(SECOND_NS - 1) == []
    assert checked.read(SECOND_NS) == [request]
    checked.check.read({0: 1, 1: 2}, 2 * SECOND_NS)  # the slot has another tenant by now
    assert checked.read(9 * SECOND_NS, wanted_bytes=0) == []
    assert checked.posted == [request, request]


def test_denials_are_reported_at_once_and_then_once_a_minute(checked: Checked) -> None:
    denial = TenantFaulted(1, 1, "cuda", 2, 0)
    assert checked.read(0, allocated_bytes=50) == []
    assert checked.read(SECOND_NS, denied=3) == [denial]
    assert checked.read(2 * SECOND_NS) == []
    assert checked.read(60 * SECOND_NS, denied=4) == [], "not yet a minute later"
    assert checked.read(61 * SECOND_NS) == [denial]
    assert checked.read(200 * SECOND_NS) == [], "an event is not posted twice"
    assert checked.registry.ledgers.denied(0) == {1: 4}


def test_fault_of_a_process_is_reported_once(checked: Checked) -> None:
    assert checked.read(fault=719) == [TenantFaulted(1, 1, "cuda", 719, 0)]
    assert checked.read() == []


def test_context_size_is_learned_from_plausible_values_only(checked: Checked) -> None:
    """A count of contexts below none, or of more than the bytes there are, would teach all tenants that one is free."""

    def size_after(contexts: int, held_bytes: int) -> int:
        checked.read(contexts=contexts)
        checked.check.prepare()
        checked.check.settle({PID: held_bytes})
        return checked.registry.ledgers.context_bytes(0)

    assert size_after(1, 300) == 300
    assert size_after(301, 300) == 300
    assert size_after(2, 500) == 250  # the least that was seen
    checked.check.expect(0)
    assert size_after(1, 200) == 200
    checked.check.expect(400)
    assert size_after(1, 100) == 400  # the node's own measurement


# ---- measurement ---------------------------------------------------------------------------------------------------


def test_measurement_during_a_call_is_not_used(checked: Checked) -> None:
    checked.read(allocated_bytes=100, begun=5, ended=4)
    checked.check.prepare()
    checked.check.settle({PID: 900})
    assert checked.check.held(1) == 100
    checked.read(ended=5)
    checked.check.prepare()
    checked.hook.write(begun=6, ended=6, allocated_bytes=200)  # a whole call during the query
    checked.check.settle({PID: 900})
    assert checked.check.held(1) == 200
    checked.check.prepare()
    checked.check.settle({PID: 900})
    assert checked.check.held(1) == 900


def test_process_that_cannot_be_matched_does_not_count_as_empty(checked: Checked) -> None:
    checked.read(allocated_bytes=100, own_bytes=300, contexts=1)
    checked.check.prepare()
    checked.check.settle({4_000_000: 500}, is_complete=False)
    assert checked.check.held(1) == 400
    checked.check.settle({4_000_000: 500}, is_complete=True)
    assert checked.check.held(1) == 100, "a process that is not listed has no context"


# ---- faults --------------------------------------------------------------------------------------------------------


def test_correct_hook_is_never_at_fault(checked: Checked) -> None:
    now = monotonic_ns()
    checked.hook.write(at_ns=now, busy_ns=now + SECOND_NS, launches=5, waits=2, sequence=5)
    assert checked.fault() is None
    checked.hook.write(launches=4, wanted_ns=MOST, asked_ns=now)  # a launch that the driver refused is not counted
    assert checked.fault() is None
    checked.hook.write(begun=1, allocated_bytes=MOST // 4)  # a call that the quota will refuse
    assert checked.fault() is None
    checked.hook.write(ended=1, allocated_bytes=5 << 30, own_bytes=1 << 30, contexts=2)
    checked.hook.share(0, ShareRole.EXPORT, 77, 1 << 30)
    checked.hook.share(1, 4, 0, 0)  # being written
    assert checked.fault() is None


@pytest.mark.parametrize(
    "words, fault",
    [
        ({"allocated_bytes": 64 << 30}, PageFault.IMPOSSIBLE_AMOUNT),
        ({"own_bytes": MOST}, PageFault.IMPOSSIBLE_AMOUNT),
        ({"managed_bytes": MOST}, PageFault.IMPOSSIBLE_AMOUNT),
        ({"wanted_bytes": 1 << 60}, PageFault.IMPOSSIBLE_AMOUNT),
        ({"fault": 1 << 40}, PageFault.IMPOSSIBLE_AMOUNT),
        ({"contexts": 1 << 30}, PageFault.IMPOSSIBLE_AMOUNT),
        ({"ended": 3}, PageFault.COUNTER_DECREASED),
        ({"at_ns": 1 << 63}, PageFault.IMPOSSIBLE_INSTANT),
        ({"busy_ns": 1 << 62}, PageFault.IMPOSSIBLE_INSTANT),
        ({"generation": 12345}, PageFault.WRONG_GENERATION),
        ({"ledger_generation": 12345}, PageFault.WRONG_GENERATION),
    ],
)
def test_impossible_content_is_the_tenants_fault(words: dict[str, int], fault: PageFault, checked: Checked) -> None:
    checked.hook.write(**words)
    assert checked.fault() is fault
    assert checked.fault() is None, "reported once"


@pytest.mark.parametrize("word", ["denied", "begun", "own_version", "waits", "sequence"])
def test_decreased_counter_is_the_tenants_fault(word: str, checked: Checked) -> None:
    both = {"begun": 5, "ended": 5} if word == "begun" else {word: 5}
    assert checked.read(**both) in ([], [TenantFaulted(1, 1, "cuda", 2, 0)])
    assert checked.fault() is None
    checked.hook.write(**{word: 4})
    assert checked.fault() is PageFault.COUNTER_DECREASED


@pytest.mark.parametrize("role, key, size", [(9, 1, 1), (1, 0, 1), (1, 5, 1 << 60)])
def test_impossible_share_is_the_tenants_fault(role: int, key: int, size: int, checked: Checked) -> None:
    checked.hook.share(3, role, key, size)
    assert checked.fault() is PageFault.IMPOSSIBLE_SHARE


def test_process_that_attaches_again_is_read_from_its_new_pages(checked: Checked) -> None:
    previous = (checked.attached.index, checked.attached.generation)
    hook, attached = checked.registry.attach(1, previous=previous)
    assert (attached.index, attached.generation) == previous
    hook.write(allocated_bytes=700)
    checked.check.read(ENTRIES, 0)
    assert checked.registry.ledgers.held(0, 1) == 700


def test_invalid_copy_is_not_used(checked: Checked) -> None:
    checked.read(allocated_bytes=100)
    checked.hook.write(allocated_bytes=MOST)
    assert checked.fault() is PageFault.IMPOSSIBLE_AMOUNT
    assert checked.check.held(1) == 100


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=8, max_size=PROCESS_BYTES), min_size=1, max_size=3), st.booleans())
def test_any_bytes_are_read_without_failing(contents: list[bytes], keep_generation: bool) -> None:
    checked = Checked()
    try:
        for content in contents:
            checked.hook.page.memory[: len(content)] = content
            if keep_generation:
                checked.hook.open(checked.attached.generation)
            checked.read()
            checked.check.prepare()
            checked.check.settle({PID: MOST, 1: None})
            assert 0 <= checked.check.held(1) <= 1 << 50
        checked.registry.processes.remove((1, 1))
        checked.check.settle({PID: MOST})
        for event in checked.posted:
            assert msgspec.json.decode(msgspec.json.encode(event), type=type(event)) == event
        msgspec.json.encode(checked.registry.ledgers.snapshot(0))
    finally:
        checked.registry.close()


# ---- shared memory -------------------------------------------------------------------------------------------------


class Sharing:
    """Three processes: two of tenant 1 and one of tenant 2."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
        self.hooks: list[HookPages] = []
        for slot, sleeper in zip((1, 1, 2), self.sleepers, strict=True):
            self.hooks.append(self.registry.attach(slot, sleeper)[0])
        self.check = LedgerCheck(0, self.registry.ledgers, self.registry.processes, lambda _: None)

    def settle(self, listed: dict[int, int | None] | None = None) -> None:
        self.check.read(ENTRIES, 0)
        self.check.prepare()
        self.check.settle(listed)

    def end(self, number: int) -> None:
        self.sleepers[number].kill()
        self.sleepers[number].wait()
        while self.registry.processes.count((1, 1)) + self.registry.processes.count((2, 1)) == 3:
            self.registry.loop.run_once()

    def held(self) -> tuple[int, int]:
        return self.registry.ledgers.held(0, 1), self.registry.ledgers.held(0, 2)

    def close(self) -> None:
        self.registry.close()
        for sleeper in self.sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.fixture
def sharing() -> Iterator[Sharing]:
    made = Sharing()
    yield made
    made.close()


def test_shared_memory_counts_once_and_is_shown_for_each_user(sharing: Sharing) -> None:
    exporter, sibling, other = sharing.hooks
    exporter.write(allocated_bytes=1000)
    exporter.share(0, ShareRole.EXPORT, 7, 600)
    sibling.share(0, ShareRole.IMPORT, 7, 0)
    other.share(0, ShareRole.IMPORT, 7, 0)
    sharing.settle()
    assert sharing.held() == (1000, 0)
    accounts = sharing.registry.ledgers.snapshot(0).accounts
    assert (accounts[1].imported_bytes, accounts[2].imported_bytes) == (0, 600)


def test_end_of_the_owner_does_not_hide_shared_memory(sharing: Sharing) -> None:
    exporter, sibling, other = sharing.hooks
    exporter.write(allocated_bytes=1000)
    exporter.share(0, ShareRole.EXPORT, 7, 600)
    sibling.share(0, ShareRole.IMPORT, 7, 0)
    other.share(0, ShareRole.IMPORT, 7, 0)
    sharing.settle()
    pid = sharing.sleepers[0].pid
    sharing.end(0)
    sharing.settle({pid: 1000})
    assert sharing.held() == (1000, 0), "the device still lists it"
    sharing.settle({})
    assert sharing.held() == (600, 0)
    sibling.share(0, 0, 0, 0)
    sharing.settle({})
    assert sharing.held() == (0, 600), "only the other tenant keeps it"
    other.share(0, 0, 0, 0)
    sharing.settle({})
    assert sharing.held() == (0, 0)


@pytest.mark.parametrize("is_observed", [True, False])
def test_memory_of_an_ended_owner_counts_once_for_the_tenant_that_has_it_open(
    sharing: Sharing, is_observed: bool
) -> None:
    """Also if the device is read between the end of the owner and the release of its other memory."""
    exporter, _, other = sharing.hooks
    if is_observed:
        sharing.settle()
    exporter.write(allocated_bytes=1000)
    exporter.share(0, ShareRole.EXPORT, 7, 600)
    other.share(0, ShareRole.IMPORT, 7, 0)
    if is_observed:
        sharing.settle()
    owner, user = sharing.sleepers[0].pid, sharing.sleepers[2].pid
    sharing.end(0)
    sharing.settle({owner: 1000, user: 600})
    assert sharing.held() == (1000, 0)
    sharing.settle({user: 600})
    assert sharing.held() == (0, 600)
    sharing.settle({user: 600})
    assert sharing.held() == (0, 600)


def test_freed_export_counts_for_the_tenant_that_has_it_open(sharing: Sharing) -> None:
    exporter, sibling, other = sharing.hooks
    exporter.write(allocated_bytes=1000)
    exporter.share(0, ShareRole.EXPORT, 7, 600)
    sibling.share(0, ShareRole.IMPORT, 7, 0)
    sharing.settle()
    exporter.write(allocated_bytes=400)
    exporter.share(0, ShareRole.ORPHANED, 7, 600)
    sharing.settle()
    assert sharing.held() == (1000, 0)
    sibling.share(0, 0, 0, 0)
    other.share(0, ShareRole.IMPORT, 7, 0)
    sharing.settle()
    assert sharing.held() == (400, 600)


def test_export_that_was_freed_between_two_readings_counts_for_the_tenant_that_has_it_open(sharing: Sharing) -> None:
    exporter, _, other = sharing.hooks
    sharing.settle()
    exporter.write(allocated_bytes=400)
    exporter.share(0, ShareRole.ORPHANED, 7, 600)
    other.share(0, ShareRole.IMPORT, 7, 0)
    sharing.settle()
    assert sharing.held() == (400, 600)


def test_freed_export_of_an_ended_process_counts_in_full(sharing: Sharing) -> None:
    """What an ended process held is no bound for memory that it had freed before."""
    exporter, _, other = sharing.hooks
    exporter.write(allocated_bytes=100)
    exporter.share(0, ShareRole.ORPHANED, 7, 600)
    other.share(0, ShareRole.IMPORT, 7, 0)
    sharing.settle()
    assert sharing.held() == (100, 600)
    sharing.end(0)
    sharing.settle({})
    assert sharing.held() == (0, 600)


def test_repeated_key_of_another_process_changes_nothing(sharing: Sharing) -> None:
    exporter, forger, other = sharing.hooks
    exporter.write(allocated_bytes=1000)
    exporter.share(0, ShareRole.EXPORT, 7, 600)
    other.share(0, ShareRole.IMPORT, 7, 0)
    sharing.settle()
    forger.share(0, ShareRole.ORPHANED, 7, 900)
    sharing.settle()
    assert sharing.held() == (1000, 0)
    forger.share(0, ShareRole.EXPORT, 7, 1)
    sharing.settle()
    assert sharing.registry.ledgers.snapshot(0).accounts[2].imported_bytes == 600


def test_number_of_an_ended_process_that_was_reused_does_not_keep_its_memory(sharing: Sharing) -> None:
    sharing.hooks[0].write(allocated_bytes=1000)
    sharing.settle()
    sharing.end(0)
    sharing.settle({sharing.sleepers[0].pid: 5})
    assert sharing.held() == (1000, 0)
    monkeyed = sharing.registry.processes
    monkeyed.is_present = lambda pid: True  # type: ignore[method-assign]
    sharing.settle({sharing.sleepers[0].pid: 5})
    assert sharing.held() == (0, 0)
