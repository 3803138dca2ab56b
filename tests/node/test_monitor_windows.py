"""The monitor reads request windows while a tenant has an objective, and shares are adjusted by them."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant import _native
from cotenant.gate import tenant_table
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.request_buckets import bounds_of, bucket_of
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node.daemon.monitor import windows
from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, DeviceWindow, OnlineShareSetpoint
from cotenant.node.model.event import Event, NodeSettings, OnlineShareProposed
from cotenant.node.model.tenant import Tenant, TenantSpec, TenantView
from cotenant.node.state.diurnal import DiurnalProfiles
from cotenant.node.state.windows import Occupant, Page, Windows
from cotenant.predict.diurnal_profile import Program
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import MILLISECOND_NS, Instant
from tests.support.gate_files import GENERATION, OFFLINE, ONLINE

pytestmark = pytest.mark.live

SLO_NS = 10 * MILLISECOND_NS


def tenant(slot: int, kind: Kind, slo_ns: int = 0, generation: int = GENERATION) -> Tenant:
    priority = 2 if kind is Kind.ONLINE else 7
    grant = Grant(slot, generation, kind, priority, 0, 0, slo_ns, 0)
    return Tenant(f"tenant{slot}", grant, TenantSpec(kind, priority), 1, 0, 0)


SERVICE, TRAINING = tenant(ONLINE, Kind.ONLINE, SLO_NS), tenant(OFFLINE, Kind.OFFLINE)


class Node:
    """The state of a node as the monitor reads it, and the pages of one device."""

    def __init__(self) -> None:
        self.turn, self.settings = 1, NodeSettings(2, 10**10, control=ControlLimits())
        self.present: list[Tenant] = []
        self.posted: list[Event] = []
        self.setpoints: dict[int, OnlineShareSetpoint] = {}
        self.now_ns: Instant = 10**12
        self.memory = tenant_table.device_memory()
        entries = GateEntry(ONLINE, GENERATION, 2, online=True), GateEntry(OFFLINE, GENERATION, 7, online=False)
        tenant_table.write_tenant_table(self.memory, GateRules(entries=entries))
        self.objectives = windows.ObjectiveMonitor(
            self, self, lambda: self.setpoints, self.posted.append, lambda: self.now_ns
        )

    def tenants(self) -> list[TenantView]:
        return [TenantView(occupant, connected=True) for occupant in self.present]

    def page(self, gpu: int, slot: int) -> Page:
        assert gpu == 0
        return tenant_table.read_page(tenant_table.gate_page(self.memory, slot))

    def entry(self, *tenants: Tenant) -> None:
        self.present = list(tenants)
        self.turn += 1

    def client(self, slot: int) -> _native.Gate:
        return _native.Gate(self.memory, slot, GENERATION)

    def wake_monitor(self) -> None:
        due = self.objectives.next_wakeup()
        assert due is not None
        assert due <= self.now_ns
        self.objectives.wake(self.now_ns)
        self.now_ns += self.settings.control.period_ns


class RecordingControl:
    """Replaces `Control`: records the windows and returns a given adjustment."""

    instances: list[RecordingControl]

    def __init__(self, limits: ControlLimits, profiles: DiurnalProfiles) -> None:
        self.limits, self.profiles = limits, profiles
        self.windows: list[DeviceWindow] = []
        self.restored: dict[int, int] = {}
        self.restored_simple: set[int] = set()
        self.has_simple_modes = False
        self.chosen: Adjustment | None = None
        self.uses: Mapping[int, TaskUse] | None = None
        self.programs: Mapping[int, Program] | None = None
        RecordingControl.instances.append(self)

    def restore(self, gpu: int, online_ppm: int, *, is_simple: bool = False) -> None:
        self.restored[gpu] = online_ppm
        if is_simple:
            self.restored_simple.add(gpu)

    def remember(self, now: Instant) -> None:
        pass

    def on_window(
        self,
        window: DeviceWindow,
        now: Instant,
        uses: Mapping[int, TaskUse] | None = None,
        programs: Mapping[int, Program] | None = None,
        *,
        has_simple_modes: bool = False,
    ) -> Adjustment | None:
        self.has_simple_modes = has_simple_modes
        assert now == window.end_ns >= window.begin_ns
        self.windows.append(window)
        self.uses, self.programs = uses, programs
        return self.chosen


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    RecordingControl.instances = []
    monkeypatch.setattr(windows, "Control", RecordingControl)
    return Node()


def test_node_without_objectives_sleeps(node: Node) -> None:
    assert node.objectives.next_wakeup() is None
    node.entry(TRAINING, tenant(ONLINE, Kind.ONLINE))
    assert node.objectives.next_wakeup() is None
    node.entry(TRAINING, SERVICE)
    assert node.objectives.next_wakeup() is not None
    node.settings = NodeSettings(2, 10**10, control=ControlLimits(adjust="off"))
    node.turn += 1
    assert node.objectives.next_wakeup() is None


def test_window_is_the_difference_of_the_counters(node: Node) -> None:
    node.entry(SERVICE, TRAINING)
    service, training = node.client(ONLINE), node.client(OFFLINE)
    service.requested(5 * MILLISECOND_NS, SLO_NS)
    node.wake_monitor()
    for latency_ns in (2 * MILLISECOND_NS, 20 * MILLISECOND_NS, 20 * MILLISECOND_NS):
        service.requested(latency_ns, SLO_NS)
    service.oldest(node.now_ns - 7)
    training.announce((3000, 3000, 0, 0, 1), node.now_ns)
    node.wake_monitor()
    node.wake_monitor()
    first, second, third = (window.tenants for window in RecordingControl.instances[-1].windows)
    assert [one.requests for one in (*first, *third)] == [0] * 4, "requests before the first read do not count"
    ours, theirs = second
    assert (ours.slot, ours.online, ours.slo_ns, ours.requests, ours.over) == (ONLINE, True, SLO_NS, 3, 2)
    assert (ours.priority, theirs.priority) == (2, 7)
    assert (ours.sum_ns, ours.oldest_ns) == (42 * MILLISECOND_NS, 7)
    assert ours.latencies == ((bucket_of(2 * MILLISECOND_NS), 1), (bucket_of(20 * MILLISECOND_NS), 2))
    assert (theirs.online, theirs.slo_ns, theirs.device_ns, theirs.requests) == (False, 0, 3000, 0)
    shown = RecordingControl.instances[-1].windows
    assert [window.begin_ns for window in shown[1:]] == [window.end_ns for window in shown[:-1]]


def test_windows_contain_the_profile_of_the_tenant(node: Node) -> None:
    use = TaskUse(round_ns=MILLISECOND_NS)
    known = msgspec.structs.replace(SERVICE, spec=msgspec.structs.replace(SERVICE.spec, use=use))
    node.entry(known, TRAINING)
    node.wake_monitor()
    assert RecordingControl.instances[-1].uses == {ONLINE: use}
    node.entry(SERVICE, TRAINING)
    node.wake_monitor()
    assert not RecordingControl.instances[-1].uses


def test_profile_key_is_the_task_or_the_requested_name(node: Node) -> None:
    spec = SERVICE.spec
    for asked, program in (
        (msgspec.structs.replace(spec, task="serve.py", name="web"), Program(0, "serve.py")),
        (msgspec.structs.replace(spec, name="web"), Program(0, "web")),
        (spec, None),
    ):
        node.entry(msgspec.structs.replace(SERVICE, spec=asked), TRAINING)
        node.wake_monitor()
        assert (RecordingControl.instances[-1].programs or {}) == ({ONLINE: program} if program else {})


def test_next_tenant_of_a_slot_starts_a_new_window(node: Node) -> None:
    node.entry(SERVICE)
    node.client(ONLINE).requested(SLO_NS, SLO_NS)
    node.wake_monitor()
    node.entry(tenant(ONLINE, Kind.ONLINE, SLO_NS, GENERATION + 1))
    node.wake_monitor()
    [later] = RecordingControl.instances[-1].windows[-1].tenants
    assert (later.generation, later.requests, later.sum_ns) == (GENERATION + 1, 0, 0)
    node.entry(TRAINING)
    assert node.objectives.next_wakeup() is None
    assert RecordingControl.instances[-1].windows[-1].tenants == (), "control is notified that no tenant is left"


def test_paused_tenant_is_not_judged(node: Node) -> None:
    other = tenant(OFFLINE, Kind.ONLINE, SLO_NS)
    node.entry(SERVICE, other)
    node.wake_monitor()
    paused = msgspec.structs.replace(SERVICE, paused=True)
    node.entry(paused, other)
    node.wake_monitor()
    first, second = RecordingControl.instances[-1].windows
    assert [[one.promised for one in window.tenants] for window in (first, second)] == [[True, True], [False, True]]
    node.entry(paused, TRAINING)
    assert node.objectives.next_wakeup() is None, "no tenant with an objective is left"


def test_decision_becomes_an_event(node: Node) -> None:
    node.setpoints[0] = OnlineShareSetpoint(0, 700_000)
    node.entry(SERVICE, TRAINING)
    node.wake_monitor()
    control = RecordingControl.instances[-1]
    assert control.restored == {0: 700_000}, "a node that was started again goes on from there"
    assert not control.restored_simple
    assert not control.has_simple_modes, "without MPS there are none"
    assert node.posted == []
    control.chosen = Adjustment(0, 800_000, next(iter(AdjustCause)), "because")
    node.wake_monitor()
    assert node.posted == [OnlineShareProposed(control.chosen)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 2**64 - 1), st.data())
def test_any_page_bytes_give_a_valid_window(seed: int, word: int, data: st.DataObject) -> None:
    """Any bytes, before or after a page that is sound, of the right generation: no sum is negative or absurd."""
    noise, pages = random.Random(seed).randbytes(tenant_table.PAGE_BYTES), []
    for kind in ("sound", "noise", "word"):
        page = bytearray(noise if kind == "noise" else tenant_table.PAGE_BYTES)
        if kind == "word":
            at = 8 * data.draw(st.integers(0, tenant_table.PAGE_BYTES // 8 - 1))
            page[at : at + 8] = word.to_bytes(8, "little")
        page[40:48] = GENERATION.to_bytes(8, "little")
        pages.append(tenant_table.read_page(bytes(page)))
        assert pages[-1]["generation"] == GENERATION
    looks = Windows(0, 10**12)
    occupants = [Occupant(0, GENERATION, True, SLO_NS)]
    order = data.draw(st.lists(st.sampled_from(pages), min_size=2, max_size=6))
    for number, said in enumerate(order):
        [seen] = looks.window(10**12 + number, occupants, {0: said}).tenants
        sums = (seen.requests, seen.over, seen.sum_ns, seen.active_ns, seen.device_ns, seen.waited_ns, seen.oldest_ns)
        assert all(0 <= value <= 1 << 56 for value in sums)
        assert all(0 <= bucket < _native.REQUEST_BUCKETS and 0 < many < 2**32 for bucket, many in seen.latencies)


@given(st.integers(0, 2**64 - 1))
def test_python_and_c_use_the_same_buckets(latency_ns: int) -> None:
    assert _native.request_bucket(latency_ns) == bucket_of(latency_ns)
    low_ns, high_ns = bounds_of(bucket_of(latency_ns))
    assert low_ns <= latency_ns or bucket_of(latency_ns) == 0
    assert latency_ns < high_ns or bucket_of(latency_ns) == _native.REQUEST_BUCKETS - 1
