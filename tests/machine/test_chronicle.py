"""Does the chronicle tell every fact in its words, of the right tenant and device, by the turns of the journal?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.domain.action import (
    NO_PEER,
    Action,
    Adjusted,
    Confirm,
    Grant,
    Kill,
    MpsRestart,
    Placed,
    Refuse,
    Restore,
    Revoke,
    Signal,
    Stop,
    Suspend,
    Watch,
)
from cotenant.domain.control import Adjustment, Cause
from cotenant.domain.event import (
    Event,
    EvictAsked,
    GateChange,
    GpuBack,
    GpuFaulted,
    GpuLost,
    GpuSeen,
    GpusFound,
    MemoryWanted,
    MpsSeen,
    NodeRestored,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    ObjectiveChanged,
    PeerLost,
    PriorityChanged,
    QuitAsked,
    RulesChanged,
    ShareChanged,
    SharesAdjusted,
    TenantFaulted,
    TenantHangs,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
    Woke,
)
from cotenant.domain.gate import GateRules, Limit
from cotenant.domain.gpu import Gpu
from cotenant.domain.happening import Level, What
from cotenant.domain.instant import NEVER
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.protect import GpuSample, GpuWatch, Health
from cotenant.domain.tenant import Kind, Tenant, TenantSpec, Terms
from cotenant.format.journal import Turn
from cotenant.machine.chronicle import Chronicle
from cotenant.policy.protect.errors import CLASSES
from tests.strategies import turns

SETTINGS = NodeSettings(4, 10, gpus=(Gpu("a", 100), Gpu("b", 100)))
STARTED = NodeStarted(SETTINGS, "1.0", 1_000_000)
WEB = TenantSpec(Kind.ONLINE, 2, "web")
JOB = TenantSpec(Kind.OFFLINE, 7, "job")
WEB_TERMS = Terms(0, 1, Kind.ONLINE, 2, 0, 0, 0, 0)
JOB_TERMS = Terms(1, 1, Kind.OFFLINE, 7, 0, 0, 0, 1)
RULES = GateRules()
ADJUSTMENT = Adjustment(0, 620_000, Cause.VIOLATED, "p99 21ms of 20ms", (), 0, 1)
BEYOND = Adjustment(0, 980_000, Cause.BEYOND_REACH)
DIVIDED = Adjustment(0, 980_000, Cause.BEYOND_REACH, "late", ((0, 600_000), (5, 400_000)), 0, 1)


def a_node_with_two() -> Chronicle:
    chronicle = Chronicle()
    chronicle.tell(500, STARTED, [])
    chronicle.tell(600, TenantJoined(1, 10, 0, WEB), [Grant(2, 1, "web", WEB_TERMS)])
    chronicle.tell(700, TenantJoined(2, 11, 0, JOB), [Grant(3, 2, "job", JOB_TERMS)])
    return chronicle


STORY: list[tuple[Event, list[Action], str]] = [
    (TenantResumed(9, 11, 0, 1, 1), [Grant(4, 9, "job", JOB_TERMS)], "resumed job 1: job is back"),
    (TenantsPaused(7, 5, True, ("job",), False, True), [Confirm(4, 7, ("job",), RULES)],
     "paused job 1: job is paused: user 5 wants it"),
    (TenantsPaused(7, 5, True, (), True, False), [Confirm(4, 7, ("job",), RULES)],
     "continued job 1: job goes on: user 5 wants it"),
    (TenantsPaused(7, 5, True, (), True, False), [Confirm(4, 7, (), RULES)], ""),
    (PriorityChanged(7, 0, True, "job", 3), [Grant(4, NO_PEER, "job", JOB_TERMS), Confirm(4, 7, ("job",), RULES)],
     "priority job 1: job has priority 3 now"),
    (PriorityChanged(7, 0, True, "jab", 3), [Refuse(4, 7, Reject(Reason.UNKNOWN_TENANT, "no tenant is called 'jab'"))],
     "wish-refused - - (unknown-tenant): a wish was refused: no tenant is called 'jab'"),
    (ShareChanged(7, 0, True, "job", 300_000, Limit.STATIC),
     [Grant(4, NO_PEER, "job", JOB_TERMS), Confirm(4, 7, ("job",), RULES)],
     "share job 1: job has a share of 30%, limit static now"),
    (ObjectiveChanged(7, 0, True, "job", 20_000_000), [Confirm(4, 7, ("job",), RULES)],
     "objective job 1: job has an objective of 20ms now"),
    (ObjectiveChanged(7, 0, True, "job", 0), [Confirm(4, 7, ("job",), RULES)],
     "objective job 1: job has no objective now"),
    (RulesChanged(7, True, GateChange(bound_ns=1000)), [Confirm(4, 7, (), RULES)],
     "rules - -: the rules of the gate are changed: bound 1us"),
    (EvictAsked(7, 0, True, ("job",)), [Confirm(4, 7, ("job",), RULES)],
     "evicting job 1: job is to end: user 0 wants it"),
    (Woke(), [Signal(4, 2, 1, 1, "term", "evicted by a person")],
     "WARNING evicted job 1: job is asked to end: evicted by a person"),
    (Woke(), [Signal(4, 2, 1, 1, "kill", "it did not end")], "WARNING killed job 1: job is killed: it did not end"),
    (Woke(), [Kill(4, 1, 1, 11, "its parent does not answer")],
     "WARNING killed job 1: job is killed by the node itself: its parent does not answer"),
    (QuitAsked(2), [], "quitting job 1: job is to end: `cotenant run` was asked to stop"),
    (MemoryWanted(0, 1, 2 << 30), [Suspend(4, 2, 1, "web needs its memory")],
     ("WARNING memory-wanted web 0: web waits for 2GiB of device memory: its quota allows it, but others hold it\n"
     "suspending job 1: job is to move its device memory to the host: web needs its memory")),
    (TenantSuspended(2, True), [], "suspended job 1: job is suspended: its device memory is on the host"),
    (TenantSuspended(2, False, "no room"), [], "WARNING suspend-failed job 1: job could not be suspended: no room"),
    (Woke(), [Restore(4, 2, 1)], "restoring job 1: job is to move its memory back to the device"),
    (TenantRestored(2, True), [], "restored job 1: job runs again: its memory is back on the device"),
    (TenantRestored(2, False, "lost"), [],
     "WARNING restore-failed job 1: job could not be brought back to the device: lost"),
    (TenantRestarted(2, "exit 1", 1), [],
     "WARNING restarted job 1: job was started again (once by now) after: exit 1"),
    (TenantRestarted(2, "exit 1", 3), [],
     "WARNING restarted job 1: job was started again (3 times by now) after: exit 1"),
    (SharesAdjusted(ADJUSTMENT), [Adjusted(4, ADJUSTMENT, 550_000)],
     "adjusted web 0 (violated): GPU 0: online keeps 62% (was 55%): web: violated, p99 21ms of 20ms"),
    (SharesAdjusted(BEYOND), [Adjusted(4, BEYOND, 980_000)],
     "WARNING adjusted - 0 (beyond reach): GPU 0: online keeps 98%: beyond reach"),
    (SharesAdjusted(DIVIDED), [Adjusted(4, DIVIDED, 980_000)],
     ("WARNING adjusted web 0 (beyond reach): GPU 0: online keeps 98%, divided among web 60% and slot-5 40%: "
      "web: beyond reach, late")),
    (TenantHangs(1, 1, "gemm", 10**6, 10**9), [],
     "WARNING hangs job 1 (hang): job hangs: kernel gemm has run for 1s, expected 1ms"),
    (GpuSeen(0, GpuSample(5)), [Watch(4, 0, GpuWatch(Health.UNHEALTHY, why="memory 95%"))],
     "WARNING gpu-state - 0 (unhealthy): GPU 0 is unhealthy: memory 95%"),
    (GpuSeen(0, GpuSample(5)), [Watch(4, 0, GpuWatch(Health.HEALTHY))], "gpu-state - 0 (healthy): GPU 0 is healthy"),
    (GpuSeen(0, GpuSample(5)), [], ""),
    (GpuLost(1, "fell off the bus"), [], "ERROR gpu-lost - 1: GPU 1 does not answer: fell off the bus"),
    (GpuBack(1), [], "gpu-back - 1: GPU 1 answers again"),
    (MpsSeen(0, True), [], "mps-ready - 0: MPS serves GPU 0"),
    (MpsSeen(0, False, "exit 1"), [MpsRestart(4, 0)],
     ("ERROR mps-gone - 0 (mps-server-died): the MPS server of GPU 0 is gone: exit 1\n"
     "mps-restart - 0: the MPS server of GPU 0 is started again")),
    (GpusFound((Gpu("soft:1 x", 5),)), [], "gpu-found - -: found soft:1 x"),
    (Woke(), [Placed(4, 1, 1, 1, "GPU 1: goodput +1.00")],
     "placed job 1: job was placed by prediction: GPU 1: goodput +1.00"),
    (Woke(), [Placed(4, 1, 1, 1, "GPU 1: goodput +0.20", 250_000)],
     ("WARNING placed job 1: job was placed, but by prediction GPU 1 is 25% too little for all objectives: "
     "GPU 1: goodput +0.20")),
    (TenantLeft(2, "exit 0"), [Revoke(4, 2, "job", 1, 1, "exit 0")], "left job 1: job left: exit 0"),
    (TenantLeft(2, "exit\n1"), [Revoke(4, 2, "job", 1, 1, "exit\n1")], r"WARNING left job 1: job left: exit\n1"),
    (PeerLost(2), [Revoke(4, NO_PEER, "job", 1, 1, "lost: its connection closed")],
     "WARNING lost job 1: job is gone: lost: its connection closed"),
    (PeerLost(33), [], ""),
    (TenantJoined(3, 1, 0, WEB), [Refuse(4, 3, Reject(Reason.UNHEALTHY, "GPU 0 is unhealthy", 2 * 10**9))],
     "WARNING refused web - (unhealthy): web was refused: GPU 0 is unhealthy; worth another try in 2s"),
    (NodeStopping("told to"), [Stop(4, "told to")], "stopped - -: node stops: told to"),
]  # fmt: skip


@pytest.mark.parametrize("event, actions, told", STORY, ids=[f"{told[:30]}" for _, _, told in STORY])
def test_each_fact_is_told_of_whom_it_is_about(event: Event, actions: list[Action], told: str) -> None:
    chronicle = a_node_with_two()
    found = []
    for each in chronicle.tell(800, event, actions):
        level = "" if each.level is Level.INFO else f"{each.level.name} "
        why = f" ({each.why})" if each.why else ""
        where = "-" if each.gpu < 0 else each.gpu
        found.append(f"{level}{each.what.value} {each.tenant or '-'} {where}{why}: {each.text}")
        assert (each.turn, each.now, each.unix_ns) == (4, 800, 800 + 1_000_000 - 500)
    assert "\n".join(found) == told


def test_every_kind_of_happening_is_told_somewhere() -> None:
    told = {line.split(": ")[0].removeprefix("WARNING ").removeprefix("ERROR ").split()[0]
            for _, _, text in STORY for line in text.splitlines()}  # fmt: skip
    elsewhere = {What.STARTED, What.GAP, What.JOINED, What.AWAITED, What.ENDING, What.FAULTED, What.GPU_FAULTED}
    assert told | {what.value for what in elsewhere} == {what.value for what in What}


def test_joins_are_told_with_what_is_asked_for_and_starts_with_who_is_expected_back() -> None:
    chronicle = Chronicle(turn=41)
    [started] = chronicle.tell(500, STARTED, [Grant(42, NO_PEER, "job", JOB_TERMS)])
    assert (started.turn, started.text) == (42, "node 1.0 started: 4 slots, 2 GPUs, 1 tenant expected back")
    [joined] = chronicle.tell(600, TenantJoined(1, 10, 0, WEB), [Grant(43, 1, "web", WEB_TERMS)])
    assert joined.text == "web joined in slot 0/1 on GPU 0: online priority 2"
    [back] = chronicle.tell(700, TenantResumed(2, 11, 0, 1, 1), [Grant(44, 2, "job", JOB_TERMS)])
    assert (back.what, back.gpu) == (What.RESUMED, 1)


def test_who_waits_to_join_is_told_once_and_then_how_it_went() -> None:
    chronicle = a_node_with_two()
    more = TenantSpec(Kind.ONLINE, 2, "more")
    for peer in (5, 6, 7):
        [waits] = chronicle.tell(800, TenantJoined(peer, 1, 0, more), [])
        assert (waits.what, waits.tenant) == (What.AWAITED, "more")
    [joined] = chronicle.tell(900, Woke(), [Grant(7, 5, "more", Terms(2, 1, Kind.ONLINE, 2, 0, 0, 0, 1))])
    assert (joined.what, joined.tenant, joined.gpu) == (What.JOINED, "more", 1)
    [refused] = chronicle.tell(900, Woke(), [Refuse(8, 6, Reject(Reason.NO_ROOM_YET, "nobody made room"))])
    assert (refused.what, refused.tenant, refused.why) == (What.REFUSED, "more", "no-room-yet")
    [gave_up] = chronicle.tell(900, PeerLost(7), [])
    assert (gave_up.what, gave_up.text) == (What.LOST, "more gave up waiting to join")
    assert chronicle.tell(900, PeerLost(7), []) == []


def test_one_that_is_asked_to_end_by_its_own_parent_is_not_evicted() -> None:
    chronicle = a_node_with_two()
    chronicle.tell(800, QuitAsked(2), [])
    [asked] = chronicle.tell(900, Woke(), [Signal(5, 2, 1, 1, "term", "its parent was asked to stop")])
    assert asked.what is What.ENDING


@pytest.mark.parametrize("code, name", [(2, "out-of-device-memory"), (700, "bad-kernel")])
def test_errors_are_told_by_their_class(code: int, name: str) -> None:
    words = {each.name: each.words for each in CLASSES}
    chronicle = a_node_with_two()
    [faulted] = chronicle.tell(800, TenantFaulted(1, 1, "cuda", code), [])
    assert (faulted.what, faulted.why) == (What.FAULTED, name)
    assert faulted.text == f"job met CUDA error {code}: {words[name]}"
    [xid] = chronicle.tell(800, GpuFaulted(1, 31, 1, 1), [])
    assert xid.text.startswith("GPU 1 reported Xid 31 of job: ")
    [nobodys] = chronicle.tell(800, GpuFaulted(1, 79), [])
    assert (nobodys.tenant, nobodys.gpu) == ("", 1)
    [strange] = chronicle.tell(800, TenantFaulted(1, 1, "astrology", 1), [])
    assert strange.why == "unknown"


def restored(turn: int) -> NodeRestored:
    return NodeRestored(SETTINGS, turn, (1, 1, 0, 0), ((2, Tenant("job", JOB_TERMS, JOB, 11, 0, 1)),), (), NEVER, NEVER)


def test_the_head_of_a_segment_tells_nothing_new_unless_turns_are_missing() -> None:
    chronicle = a_node_with_two()
    assert chronicle.tell(800, restored(3), []) == []
    [left] = chronicle.tell(900, TenantLeft(2, "exit 0"), [Revoke(4, 2, "job", 1, 1, "exit 0")])
    assert left.turn == 4
    [gap] = chronicle.tell(950, restored(10), [])
    assert (gap.what, gap.text) == (What.GAP, "6 turns before this are not on record")
    late = Chronicle(unix_offset_ns=7)
    assert late.tell(800, restored(3), []) == [], "whoever begins there misses nothing"
    [left] = late.tell(900, TenantLeft(2, "exit 0"), [Revoke(4, 2, "job", 1, 1, "exit 0")])
    assert (left.tenant, left.gpu, left.unix_ns) == ("job", 1, 907)


@given(st.lists(turns, max_size=20))
def test_whatever_is_on_record_can_be_told_in_printable_lines(record: list[Turn]) -> None:
    chronicle = Chronicle()
    for turn in record:
        told = chronicle.tell(turn.now, turn.event, turn.actions)
        assert all(each.text.isprintable() and each.turn == chronicle.turn for each in told)
