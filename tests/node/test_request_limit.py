"""No user and no peer can make the node write without a rate limit, and what was dropped is counted."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.grant import Kind
from cotenant.node.daemon.rate_limit import Rate
from cotenant.node.daemon.request_limit import (
    OWN_RATE,
    PEER_RATE,
    STRANGER_RATE,
    SUMMARY_NS,
    DroppedRequests,
    RequestLimiter,
)
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import (
    Event,
    GateChange,
    NodeReported,
    NodeSettings,
    NodeStarted,
    PeerLost,
    RulesChanged,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
)
from cotenant.node.model.log_event import LogEventKind
from cotenant.node.model.tenant import TenantSpec
from cotenant.units.instant import SECOND_NS
from tests.support.failing_disk import OWN_UID, Disk, NodeOnDisk

STRANGER = 4242
JOB = TenantSpec(Kind.OFFLINE, 7, "job")


@given(st.lists(st.integers(0, SECOND_NS // 4), max_size=300))
def test_rate_admits_a_burst_and_then_one_request_per_interval(steps: list[int]) -> None:
    burst, interval_ns = STRANGER_RATE
    rate, now, admitted = Rate(burst, interval_ns), 0, []
    for step in steps:
        now += step
        wait_ns = rate.wait_ns(1, now)
        if wait_ns:
            assert rate.wait_ns(1, now + wait_ns - 1) == 1, "it must not send earlier"
            now += wait_ns
            assert rate.wait_ns(1, now) == 0, "and may send then"
        admitted.append(now)
    for index, at in enumerate(admitted):
        window = [other for other in admitted[index:] if other - at < SECOND_NS]
        assert len(window) <= burst + SECOND_NS // interval_ns + 1


def test_refused_sender_may_send_after_the_stated_time() -> None:
    rate = Rate(2, 100)
    assert [rate.wait_ns(1, 0) for _ in range(4)] == [0, 0, 100, 100]
    assert rate.wait_ns(1, 99) > 0
    assert rate.wait_ns(1, 100) == 0
    assert rate.wait_ns(2, 100) == 0, "another sender is not affected"


def test_number_of_remembered_senders_is_bounded() -> None:
    rate = Rate(2, SECOND_NS)
    for key in range(5000):
        rate.wait_ns(key, 0)
    assert len(rate._due) <= 1024


def events_of(uid: int, peer: int) -> list[Event]:
    return [TenantJoined(peer, 1, uid, JOB), RulesChanged(peer, uid == OWN_UID, GateChange())]


@pytest.mark.parametrize("kind", [0, 1])
def test_strangers_have_a_lower_limit_than_the_nodes_user(kind: int) -> None:
    limiter = RequestLimiter(OWN_UID)
    for uid, (burst, _) in ((STRANGER, STRANGER_RATE), (OWN_UID, OWN_RATE)):
        waits = [limiter.wait_ns(events_of(uid, number)[kind], 0) for number in range(burst + 1)]
        assert not any(waits[:-1])
        assert waits[-1] > 0


def test_messages_of_one_tenant_are_limited_and_its_end_is_not() -> None:
    limiter = RequestLimiter(OWN_UID)
    waits = [limiter.wait_ns(TenantRestarted(3, "exit 1", number), 0) for number in range(PEER_RATE[0] + 1)]
    assert waits[-1] > 0
    assert limiter.wait_ns(TenantRestarted(4, "exit 1", 1), 0) == 0
    for _ in range(1000):
        assert limiter.wait_ns(TenantLeft(3, "exit 0"), 0) == 0
        assert limiter.wait_ns(PeerLost(3), 0) == 0


def test_flood_of_refused_joins_writes_a_bounded_amount(tmp_path: Path) -> None:
    node = NodeOnDisk(tmp_path, Disk())
    node.tell(NodeStarted(NodeSettings(1, 10), "test", 0))
    node.tell(TenantJoined(1, 1, OWN_UID, JOB))
    turns = node.machine.turn
    for number in range(5000):
        node.tell(TenantJoined(2 + number, 1, STRANGER, JOB))
    assert node.machine.turn - turns <= STRANGER_RATE[0]
    reasons = {reject.reason for _, reject in node.refusals}
    assert reasons == {Reason.TOO_MANY}, "the others were refused by turns"
    assert all(reject.retry_after_ns > 0 for _, reject in node.refusals)
    size = node.path.stat().st_size
    node.tell(TenantLeft(1, "exit 0"))
    node.tell(TenantJoined(1, 1, OWN_UID, JOB))
    assert len(node.machine.tenants()) == 1, "the node's own user is not affected"
    assert node.path.stat().st_size > size
    assert node.replayed() == node.machine.snapshot()
    node.close()


def test_dropped_requests_are_summarised_at_a_bounded_rate() -> None:
    posted: list[Event] = []
    dropped = DroppedRequests(posted.append)
    assert dropped.next_wakeup() is None
    now = 0
    summaries = []
    for _ in range(1000):
        now += SUMMARY_NS // 100
        dropped.count(STRANGER, "violations of the protocol", now)
        due = dropped.next_wakeup()
        assert due is not None
        if now >= due:
            dropped.wake(now)
            summaries.append(now)
    assert all(second - first >= SUMMARY_NS for first, second in itertools.pairwise(summaries))
    assert 9 <= len(summaries) <= 11
    first = posted[0]
    assert isinstance(first, NodeReported)
    assert first.what is LogEventKind.REQUESTS_DROPPED
    assert "violations of the protocol of user 4242" in first.text
    assert dropped.total == 1000


def test_summary_of_many_users_is_short() -> None:
    posted: list[Event] = []
    dropped = DroppedRequests(posted.append)
    for uid in range(10_000):
        dropped.count(uid, "violations of the protocol", 0)
    dropped.wake(SECOND_NS)
    [report] = posted
    assert isinstance(report, NodeReported)
    assert len(report.text) < 4000
    assert "of other users" in report.text
