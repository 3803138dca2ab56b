"""The event log describes every event and action, with the right tenant, device and turn."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateRules, Limit
from cotenant.node.journal import NodeTurn
from cotenant.node.model.action import (
    NO_PEER,
    Action,
    Confirm,
    IssueGrant,
    KillTenant,
    RecordPlacement,
    Refuse,
    ReportGpuHealth,
    RestartMps,
    RestoreTenant,
    Revoke,
    SetOnlineShare,
    SignalTenant,
    Stop,
    SuspendTenant,
)
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.calibration import Calibration
from cotenant.node.model.control import AdjustCause, Adjustment
from cotenant.node.model.event import (
    Event,
    EvictionRequested,
    GateChange,
    GpuCalibrated,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    GpusFound,
    MemoryRequested,
    MpsStatusChanged,
    NodeReported,
    NodeRestored,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    ObjectiveChanged,
    OnlineShareProposed,
    PeerLost,
    PriorityChanged,
    QuitRequested,
    RulesChanged,
    SettingsChanged,
    ShareChanged,
    TenantFaulted,
    TenantHung,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.log_event import LogEventKind, LogLevel
from cotenant.node.model.protection import GpuSample, GpuWatch, Health
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.node.policy.protect.errors import CLASSES
from cotenant.node.state.event_log import EventLog
from cotenant.node.state.event_text import FORMATTERS, LogText
from cotenant.units.instant import NEVER
from tests.support.strategies import turns

SETTINGS = NodeSettings(4, 10, gpus=(Gpu("a", 100), Gpu("b", 100)))
STARTED = NodeStarted(SETTINGS, "1.0", 1_000_000)
WEB = TenantSpec(Kind.ONLINE, 2, "web")
JOB = TenantSpec(Kind.OFFLINE, 7, "job")
WEB_GRANT = Grant(0, 1, Kind.ONLINE, 2, 0, 0, 0, 0)
JOB_GRANT = Grant(1, 1, Kind.OFFLINE, 7, 0, 0, 0, 1)
RULES = GateRules()
ADJUSTMENT = Adjustment(0, 620_000, AdjustCause.VIOLATED, "p99 21ms of 20ms", (), 0, 1)
UNREACHABLE = Adjustment(0, 980_000, AdjustCause.UNREACHABLE)
DIVIDED = Adjustment(0, 980_000, AdjustCause.UNREACHABLE, "late", ((0, 600_000), (5, 400_000)), 0, 1)


def log_with_two_tenants() -> EventLog:
    event_log = EventLog()
    event_log.record(500, STARTED, [])
    event_log.record(600, TenantJoined(1, 10, 0, WEB), [IssueGrant(2, 1, "web", WEB_GRANT)])
    event_log.record(700, TenantJoined(2, 11, 0, JOB), [IssueGrant(3, 2, "job", JOB_GRANT)])
    return event_log


EXAMPLES: list[tuple[Event, list[Action], str]] = [
    (TenantResumed(9, 11, 0, 1, 1), [IssueGrant(4, 9, "job", JOB_GRANT)], "resumed job 1: job reconnected"),
    (TenantsPaused(7, 5, True, ("job",), False, True), [Confirm(4, 7, ("job",), RULES)],
     "paused job 1: job is paused: requested by user 5"),
    (TenantsPaused(7, 5, True, (), True, False), [Confirm(4, 7, ("job",), RULES)],
     "continued job 1: job resumes: requested by user 5"),
    (TenantsPaused(7, 5, True, (), True, False), [Confirm(4, 7, (), RULES)], ""),
    (PriorityChanged(7, 0, True, "job", 3), [IssueGrant(4, NO_PEER, "job", JOB_GRANT), Confirm(4, 7, ("job",), RULES)],
     "priority job 1: job now has priority 3"),
    (PriorityChanged(7, 0, True, "jab", 3), [Refuse(4, 7, Reject(Reason.UNKNOWN_TENANT, "no tenant is called 'jab'"))],
     "command-refused - - (unknown-tenant): a command was refused: no tenant is called 'jab'"),
    (ShareChanged(7, 0, True, "job", 300_000, Limit.STATIC),
     [IssueGrant(4, NO_PEER, "job", JOB_GRANT), Confirm(4, 7, ("job",), RULES)],
     "share job 1: job now has share 30%, limit static"),
    (ObjectiveChanged(7, 0, True, "job", 20_000_000), [Confirm(4, 7, ("job",), RULES)],
     "objective job 1: job now has latency objective 20ms"),
    (ObjectiveChanged(7, 0, True, "job", 0), [Confirm(4, 7, ("job",), RULES)],
     "objective job 1: job now has no latency objective"),
    (RulesChanged(7, True, GateChange(bound_ns=1000)), [Confirm(4, 7, (), RULES)],
     "rules - -: the rules of the gate changed: bound 1us"),
    (EvictionRequested(7, 0, True, ("job",)), [Confirm(4, 7, ("job",), RULES)],
     "evicting job 1: job is being evicted: requested by user 0"),
    (TimerFired(), [SignalTenant(4, 2, 1, 1, "term", "evicted by a person")],
     "WARNING evicted job 1: job is asked to exit: evicted by a person"),
    (TimerFired(), [SignalTenant(4, 2, 1, 1, "kill", "it did not end")],
     "WARNING killed job 1: job is killed: it did not end"),
    (TimerFired(), [KillTenant(4, 1, 1, 11, "its parent does not answer")],
     "WARNING killed job 1: job is killed by the node: its parent does not answer"),
    (QuitRequested(2), [], "quitting job 1: job is ending: its `cotenant run` was asked to stop"),
    (MemoryRequested(0, 1, 2 << 30), [SuspendTenant(4, 2, 1, "web needs its memory")],
     ("WARNING memory-requested web 0: web waits for 2GiB of device memory, which its quota allows "
      "and other tenants hold\n"
     "suspending job 1: job is asked to move its device memory to the host: web needs its memory")),
    (TenantSuspended(2, True), [], "suspended job 1: job is suspended: its device memory is on the host"),
    (TenantSuspended(2, False, "no room"), [], "WARNING suspend-failed job 1: job could not be suspended: no room"),
    (TimerFired(), [RestoreTenant(4, 2, 1)], "restoring job 1: job is asked to move its memory back to the device"),
    (TenantRestored(2, True), [], "restored job 1: job runs again: its memory is back on the device"),
    (TenantRestored(2, False, "lost"), [],
     "WARNING restore-failed job 1: job could not be restored to the device: lost"),
    (TenantRestarted(2, "exit 1", 1), [],
     "WARNING restarted job 1: job was restarted (once so far) after: exit 1"),
    (TenantRestarted(2, "exit 1", 3), [],
     "WARNING restarted job 1: job was restarted (3 times so far) after: exit 1"),
    (OnlineShareProposed(ADJUSTMENT), [SetOnlineShare(4, ADJUSTMENT, 550_000)],
     ("adjusted web 0 (objective violated): GPU 0: online share set to 62% (was 55%): web misses its "
      "objective, p99 21ms of 20ms")),
    (OnlineShareProposed(UNREACHABLE), [SetOnlineShare(4, UNREACHABLE, 980_000)],
     "WARNING adjusted - 0 (objective unreachable): GPU 0: online share set to 98%: objective unreachable"),
    (OnlineShareProposed(DIVIDED), [SetOnlineShare(4, DIVIDED, 980_000)],
     ("WARNING adjusted web 0 (objective unreachable): GPU 0: online share set to 98%, divided into "
      "web 60% and slot-5 40%: "
      "web cannot meet its objective, late")),
    (TenantHung(1, 1, "gemm", 10**6, 10**9), [],
     "WARNING hung job 1 (hang): job hangs: kernel gemm has run for 1s, expected 1ms"),
    (GpuSampled(0, GpuSample(5)), [ReportGpuHealth(4, 0, GpuWatch(Health.UNHEALTHY, why="memory 95%"))],
     "WARNING gpu-state - 0 (unhealthy): GPU 0 is unhealthy: memory 95%"),
    (GpuSampled(0, GpuSample(5)), [ReportGpuHealth(4, 0, GpuWatch(Health.HEALTHY))],
     "gpu-state - 0 (healthy): GPU 0 is healthy"),
    (GpuSampled(0, GpuSample(5)), [], ""),
    (GpuLost(1, "fell off the bus"), [], "ERROR gpu-lost - 1: GPU 1 does not respond: fell off the bus"),
    (GpuRecovered(1), [], "gpu-recovered - 1: GPU 1 responds again"),
    (MpsStatusChanged(0, True), [], "mps-ready - 0: the MPS server of GPU 0 is ready"),
    (MpsStatusChanged(0, False, "exit 1"), [RestartMps(4, 0)],
     ("ERROR mps-exited - 0 (mps-server-died): the MPS server of GPU 0 exited: exit 1\n"
     "mps-restart - 0: the MPS server of GPU 0 is restarted")),
    (GpusFound((Gpu("soft:1 x", 5),)), [], "gpu-found - -: new GPUs: soft:1 x"),
    (GpuCalibrated(0, Calibration(driver="1", uuid="GPU-1", is_mps=True, launch_ns=2000)), [],
     ("gpu-calibrated - 0: GPU 0 was measured: a switch between processes takes 0ns, a time slice 0ns, a launch 2us, "
      "recording an event 0ns, a query 0ns, events have a resolution of 0ns, MPS is effective, "
      "the effect of MPS priorities is unknown")),
    (TimerFired(), [RecordPlacement(4, 1, 1, 1, "GPU 1: goodput +1.00")],
     "placed job 1: job was placed by prediction: GPU 1: goodput +1.00"),
    (TimerFired(), [RecordPlacement(4, 1, 1, 1, "GPU 1: goodput +0.20", 250_000)],
     ("WARNING placed job 1: job was placed, but GPU 1 is predicted to lack 25% for all objectives: "
     "GPU 1: goodput +0.20")),
    (TenantLeft(2, "exit 0"), [Revoke(4, 2, "job", 1, 1, "exit 0")], "left job 1: job left: exit 0"),
    (TenantLeft(2, "exit\n1"), [Revoke(4, 2, "job", 1, 1, "exit\n1")], r"WARNING left job 1: job left: exit\n1"),
    (PeerLost(2), [Revoke(4, NO_PEER, "job", 1, 1, "lost: its connection closed")],
     "WARNING lost job 1: job was lost: its connection closed"),
    (PeerLost(33), [], ""),
    (TenantJoined(3, 1, 0, WEB), [Refuse(4, 3, Reject(Reason.UNHEALTHY, "GPU 0 is unhealthy", 2 * 10**9))],
     "WARNING refused web - (unhealthy): web was refused: GPU 0 is unhealthy; retry in 2s"),
    (SettingsChanged(SETTINGS, "node.gate = strict"), [], "settings - -: the settings changed: node.gate = strict"),
    (NodeReported(LogEventKind.JOURNAL_FAILED, "full", LogLevel.ERROR), [], "ERROR journal-failed - -: full"),
    (NodeReported(LogEventKind.JOURNAL_RESTORED, "free", LogLevel.INFO), [], "journal-restored - -: free"),
    (NodeReported(LogEventKind.FILES_LOST, "gone"), [], "WARNING files-lost - -: gone"),
    (NodeReported(LogEventKind.FILES_RESTORED, "back"), [], "WARNING files-restored - -: back"),
    (NodeReported(LogEventKind.REQUESTS_DROPPED, "9 requests"), [], "WARNING requests-dropped - -: 9 requests"),
    (NodeStopping("requested"), [Stop(4, "requested")], "stopped - -: node stops: requested"),
]  # fmt: skip


@pytest.mark.parametrize("event, actions, reported", EXAMPLES, ids=[f"{reported[:30]}" for _, _, reported in EXAMPLES])
def test_each_event_names_its_subject(event: Event, actions: list[Action], reported: str) -> None:
    event_log = log_with_two_tenants()
    lines = []
    for log_event in event_log.record(800, event, actions):
        level = "" if log_event.level is LogLevel.INFO else f"{log_event.level.name} "
        why = f" ({log_event.why})" if log_event.why else ""
        where = "-" if log_event.gpu < 0 else log_event.gpu
        lines.append(f"{level}{log_event.what.value} {log_event.tenant or '-'} {where}{why}: {log_event.text}")
        assert (log_event.turn, log_event.now, log_event.unix_ns) == (4, 800, 800 + 1_000_000 - 500)
    assert "\n".join(lines) == reported


def test_every_kind_of_log_event_is_covered() -> None:
    reported = {line.split(": ")[0].removeprefix("WARNING ").removeprefix("ERROR ").split()[0]
            for _, _, text in EXAMPLES for line in text.splitlines()}  # fmt: skip
    covered_elsewhere = {
        LogEventKind.STARTED,
        LogEventKind.GAP,
        LogEventKind.JOINED,
        LogEventKind.JOIN_WAITING,
        LogEventKind.ENDING,
        LogEventKind.FAULTED,
        LogEventKind.GPU_FAULTED,
        LogEventKind.MEMORY_BYPASSED,
        LogEventKind.MEMORY_SEEN,
        LogEventKind.FOREIGN_MEMORY,
        LogEventKind.PROCESSES_UNMATCHED,
        LogEventKind.PAGE_REWRITTEN,
        LogEventKind.UNDESCRIBED,
    }
    assert reported | {kind.value for kind in covered_elsewhere} == {kind.value for kind in LogEventKind}


@pytest.mark.parametrize("place", [0, 1])
def test_text_that_cannot_be_made_is_an_event_and_no_exception(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    def fail(*_: object) -> LogText:
        raise KeyError("share\n")

    revoke = Revoke(4, 2, "job", 1, 1, "exit 0")
    event, kill = PeerLost(2), KillTenant(4, 0, 1, 9, "a cause")
    subject = kill if place else event
    monkeypatch.setitem(FORMATTERS, type(subject), fail)
    event_log = log_with_two_tenants()
    found = event_log.record(800, event, [revoke, kill] if place else [revoke])
    assert [event.what for event in found].count(LogEventKind.UNDESCRIBED) == 1
    assert LogEventKind.LOST in [event.what for event in found], "the other sentences of the turn are there"
    [broken] = [event for event in found if event.what is LogEventKind.UNDESCRIBED]
    assert type(subject).__name__ in broken.text
    assert "KeyError" in broken.text
    assert broken.level is LogLevel.ERROR
    assert "\n" not in broken.text


def test_joins_list_the_request_and_starts_the_tenants_expected_back() -> None:
    event_log = EventLog(turn=41)
    [started] = event_log.record(500, STARTED, [IssueGrant(42, NO_PEER, "job", JOB_GRANT)])
    assert (started.turn, started.text) == (42, "node 1.0 started: 4 slots, 2 GPUs, 1 tenant expected back")
    [joined] = event_log.record(600, TenantJoined(1, 10, 0, WEB), [IssueGrant(43, 1, "web", WEB_GRANT)])
    assert joined.text == "web joined in slot 0/1 on GPU 0: online priority 2"
    [back] = event_log.record(700, TenantResumed(2, 11, 0, 1, 1), [IssueGrant(44, 2, "job", JOB_GRANT)])
    assert (back.what, back.gpu) == (LogEventKind.RESUMED, 1)


def test_waiting_join_is_logged_once_and_then_its_result() -> None:
    event_log = log_with_two_tenants()
    more = TenantSpec(Kind.ONLINE, 2, "more")
    for peer in (5, 6, 7):
        [waits] = event_log.record(800, TenantJoined(peer, 1, 0, more), [])
        assert (waits.what, waits.tenant) == (LogEventKind.JOIN_WAITING, "more")
    [joined] = event_log.record(900, TimerFired(), [IssueGrant(7, 5, "more", Grant(2, 1, Kind.ONLINE, 2, 0, 0, 0, 1))])
    assert (joined.what, joined.tenant, joined.gpu) == (LogEventKind.JOINED, "more", 1)
    [refused] = event_log.record(900, TimerFired(), [Refuse(8, 6, Reject(Reason.NO_CAPACITY_YET, "nobody made room"))])
    assert (refused.what, refused.tenant, refused.why) == (LogEventKind.REFUSED, "more", "no-capacity-yet")
    [gave_up] = event_log.record(900, PeerLost(7), [])
    assert (gave_up.what, gave_up.text) == (LogEventKind.LOST, "more gave up waiting to join")
    assert event_log.record(900, PeerLost(7), []) == []


def test_exit_requested_by_the_parent_is_not_logged_as_an_eviction() -> None:
    event_log = log_with_two_tenants()
    event_log.record(800, QuitRequested(2), [])
    [ending] = event_log.record(900, TimerFired(), [SignalTenant(5, 2, 1, 1, "term", "its parent was asked to stop")])
    assert ending.what is LogEventKind.ENDING


@pytest.mark.parametrize("code, name", [(2, "out-of-device-memory"), (700, "bad-kernel")])
def test_errors_are_described_by_their_class(code: int, name: str) -> None:
    descriptions = {error_class.name: error_class.description for error_class in CLASSES}
    event_log = log_with_two_tenants()
    [faulted] = event_log.record(800, TenantFaulted(1, 1, "cuda", code), [])
    assert (faulted.what, faulted.why) == (LogEventKind.FAULTED, name)
    assert faulted.text == f"job reported CUDA error {code}: {descriptions[name]}"
    [xid] = event_log.record(800, GpuFaulted(1, 31, 1, 1), [])
    assert xid.text.startswith("GPU 1 reported Xid 31 of job: ")
    [unattributed] = event_log.record(800, GpuFaulted(1, 79), [])
    assert (unattributed.tenant, unattributed.gpu) == ("", 1)
    [unknown] = event_log.record(800, TenantFaulted(1, 1, "astrology", 1), [])
    assert unknown.why == "unknown"


def restored(turn: int) -> NodeRestored:
    return NodeRestored(SETTINGS, turn, (1, 1, 0, 0), ((2, Tenant("job", JOB_GRANT, JOB, 11, 0, 1)),), (), NEVER, NEVER)


def test_segment_head_adds_no_log_event_unless_turns_are_missing() -> None:
    event_log = log_with_two_tenants()
    assert event_log.record(800, restored(3), []) == []
    [left] = event_log.record(900, TenantLeft(2, "exit 0"), [Revoke(4, 2, "job", 1, 1, "exit 0")])
    assert left.turn == 4
    [gap] = event_log.record(950, restored(10), [])
    assert (gap.what, gap.text) == (LogEventKind.GAP, "6 turns before this are not on record")
    late = EventLog(unix_offset_ns=7)
    assert late.record(800, restored(3), []) == [], "a reader that begins with this segment misses no turns"
    [left] = late.record(900, TenantLeft(2, "exit 0"), [Revoke(4, 2, "job", 1, 1, "exit 0")])
    assert (left.tenant, left.gpu, left.unix_ns) == ("job", 1, 907)


@given(st.lists(turns, max_size=20))
def test_any_journal_yields_printable_lines(record: list[NodeTurn]) -> None:
    event_log = EventLog()
    for turn in record:
        reported = event_log.record(turn.now, turn.event, turn.actions)
        assert all(log_event.text.isprintable() and log_event.turn == event_log.turn for log_event in reported)


@pytest.mark.parametrize("cause", AdjustCause)
def test_every_cause_of_an_adjustment_has_a_sentence(cause: AdjustCause) -> None:
    adjustment = Adjustment(0, 620_000, cause, "p99 21ms of 20ms", (), 0, 1)
    [log_event] = log_with_two_tenants().record(
        900, OnlineShareProposed(adjustment), [SetOnlineShare(4, adjustment, 640_000)]
    )
    assert re.search(r": web \w.*, p99 21ms of 20ms$", log_event.text), log_event.text
