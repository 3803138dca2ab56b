"""`cotenant explain` names the causes of a tenant's state, the most binding first, with the journal entry."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cotenant.cli import main
from cotenant.gate.activity import DeviceSnapshot, GateCounts
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.hold_reason import HeldLaunch, HoldReason
from cotenant.gate.ledger import LedgerAccount, LedgerLine, LedgerSnapshot
from cotenant.gate.rules import GateEntry, GateRules
from cotenant.node import wire
from cotenant.node.client import explain as explaining
from cotenant.node.client import explain_gate
from cotenant.node.client.explain_text import describe_whole
from cotenant.node.client.tenants import NodeSnapshot
from cotenant.node.directories import Directories
from cotenant.node.model.action import (
    Action,
    Confirm,
    IssueGrant,
    Refuse,
    ReportGpuHealth,
    Revoke,
    SetOnlineShare,
    SignalTenant,
)
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.control import AdjustCause, Adjustment, OnlineShareSetpoint
from cotenant.node.model.event import (
    Event,
    EvictionRequested,
    NodeSettings,
    NodeStarted,
    OnlineShareProposed,
    TenantFaulted,
    TenantHung,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantsPaused,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import ExitPhase, GpuWatch, Health, Lifecycle
from cotenant.node.model.tenant import Tenant, TenantSpec, TenantView
from cotenant.node.state.node import NodeMachine
from cotenant.runner.journal_file import FileJournal
from tests.support.tools import ROOT

pytestmark = pytest.mark.live

STARTED = NodeStarted(NodeSettings(4, 10, gpus=(Gpu("a", 1 << 30),)), "1.0", 1_700_000_000_000_000_000)
WEB, JOB = TenantSpec(Kind.ONLINE, 2, "web"), TenantSpec(Kind.OFFLINE, 7, "job", memory_bytes=1 << 29)
WEB_GRANT = Grant(0, 1, Kind.ONLINE, 2, 0, 0, 0, 0)
JOB_GRANT = Grant(1, 1, Kind.OFFLINE, 7, 0, 1 << 29, 0, 0)
JOINED: list[tuple[Event, list[Action]]] = [
    (STARTED, []),
    (TenantJoined(1, 10, 0, WEB), [IssueGrant(2, 1, "web", WEB_GRANT)]),
    (TenantJoined(2, 11, 0, JOB), [IssueGrant(3, 2, "job", JOB_GRANT)]),
]
Captured = pytest.CaptureFixture[str]
SetTenants = Callable[..., None]
SetGpu = Callable[[DeviceSnapshot | None, LedgerSnapshot | None, dict[int, HeldLaunch]], None]
PRESENT = "job is here: slot 1/1 on GPU 0 (a), offline at priority 7"
ENTRY = "   journal, turn {turn} at (time): {entry}"


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directories:
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("cotenant.cli.render.explain.local_time", lambda unix_ns: "(time)")
    (tmp_path / "config.toml").touch()
    (tmp_path / "state").mkdir()
    return Directories(tmp_path / "run", tmp_path / "state")


def write_journal(directories: Directories, *more: tuple[Event, list[Action]]) -> None:
    journal = FileJournal(directories.journal, 1 << 30)
    for number, (event, actions) in enumerate([*JOINED, *more], 1):
        journal.append(number * 1000, event, actions)
    journal.close()


def job(lifecycle: Lifecycle | None = None, **more: object) -> Tenant:
    made = Tenant("job", JOB_GRANT, JOB, 11, 0, 3000, lifecycle=lifecycle or Lifecycle())
    return msgspec.structs.replace(made, **more)


@pytest.fixture
def set_present(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_tenants(tenant: Tenant, watch: GpuWatch | None = None, *, connected: bool = True) -> None:
        web = TenantView(Tenant("web", WEB_GRANT, WEB, 10, 0, 2000), True)
        tenant_list = NodeSnapshot(
            True, 9000, [web, TenantView(tenant, connected)], [Gpu("a", 1 << 30)], [watch or GpuWatch()]
        )
        monkeypatch.setattr(explaining, "read_node_snapshot", lambda directories: tenant_list)
        nothing = wire.Activity(wire.VERSION, [wire.GpuActivity(None, None, {})])
        monkeypatch.setattr(explain_gate, "read_activity", lambda directories: nothing)

    return set_tenants


@pytest.fixture
def set_gpu(monkeypatch: pytest.MonkeyPatch) -> SetGpu:
    def set_answer(gate: DeviceSnapshot | None, ledger: LedgerSnapshot | None, holds: dict[int, HeldLaunch]) -> None:
        activity = wire.Activity(wire.VERSION, [wire.GpuActivity(gate, ledger, holds)])
        monkeypatch.setattr(explain_gate, "read_activity", lambda directories: activity)

    return set_answer


def explanation_lines(capsys: Captured, name: str = "job") -> list[str]:
    assert main(["explain", name]) == 0
    return capsys.readouterr().out.splitlines()


GRANTED = ENTRY.format(
    turn=3, entry="0.000003000 peer 2 joins as job: offline priority 7 memory 512MiB -> grant job slot 1/1 on GPU 0"
)
IDLE = ["nothing holds it back: it has launched nothing on its device yet", GRANTED]


@pytest.mark.parametrize(
    "phase, words",
    [
        (ExitPhase.DRAINING, "it is ending: its launches wait until the work that it announced has ended"),
        (ExitPhase.TERMINATING, "it is ending: it was asked to end, and may launch only what its shutdown needs"),
        (ExitPhase.FINISHING, "it is ending: its grace period is over, and it will be killed"),
        (ExitPhase.KILLED, "it was killed, and the node waits for its end"),
        (ExitPhase.SUSPENDING, "it is being suspended: its device memory moves to the host"),
        (ExitPhase.SUSPENDED, "it is suspended: its device memory is on the host until there is free memory again"),
        (ExitPhase.RESTORING, "it is being restored: its memory moves from the host to the device"),
    ],
)  # fmt: skip
def test_state_comes_first(
    phase: ExitPhase, words: str, directories: Directories, set_present: SetTenants, capsys: Captured
) -> None:
    write_journal(directories, (EvictionRequested(9, 0, True, ("job",)), [Confirm(4, 9, ("job",), GateRules())]))
    set_present(job(Lifecycle(phase, "evicted by user 0", 4, 4000, 9000 + 10**9)))
    entry = ENTRY.format(turn=4, entry="0.000004000 peer 9 evicts job -> confirm to peer 9: job")
    lines = explanation_lines(capsys)
    assert lines[:3] == [PRESENT, f"1. {words}, for at most 1s more (evicted by user 0)", entry]
    assert lines[3:] == [f"2. {IDLE[0]}", IDLE[1]]


def test_pause_and_disconnection_are_explained_with_the_remedy(
    directories: Directories, set_present: SetTenants, capsys: Captured
) -> None:
    paused = TenantsPaused(9, 0, True, ("job",), False, True)
    write_journal(directories, (paused, [Confirm(4, 9, ("job",), GateRules())]))
    set_present(job(paused=True), connected=False)
    assert explanation_lines(capsys) == [
        PRESENT,
        "1. it is disconnected: the node restarted, and `cotenant run` has not reconnected yet",
        GRANTED,
        "2. it is paused and launches nothing; resume it with: cotenant resume job",
        ENTRY.format(turn=4, entry="0.000004000 peer 9 pauses job -> confirm to peer 9: job"),
        f"3. {IDLE[0]}",
        IDLE[1],
    ]


def test_gate_decision_names_higher_priorities(
    directories: Directories,
    set_present: SetTenants,
    set_gpu: SetGpu,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_journal(directories)
    set_present(job())
    monkeypatch.setattr(explain_gate, "pause", lambda _: None)
    rules = GateRules(entries=(GateEntry(0, 1, 2, online=True), GateEntry(1, 1, 7, online=False)))
    now = 10**12
    set_gpu(DeviceSnapshot(0, now, rules, {1: GateCounts(1)}), None, {1: HeldLaunch(HoldReason.BUSY, now, (0,))})
    assert explanation_lines(capsys) == [
        PRESENT,
        "1. it waits at the gate: work of web (priority 2) still runs",
        "   in 20 of 20 checks within 0.2 s",
        GRANTED,
    ]
    set_gpu(DeviceSnapshot(0, now, rules, {1: GateCounts(1, waits=1, waited_ns=10**9)}), None, {})
    lines = explanation_lines(capsys)
    assert lines[1] == "1. nothing holds it back: it did not wait at the gate in any of 20 checks"
    assert "1 of them waited, 1s in total" in lines[2]


def test_launches_in_parts_are_explained_with_the_reasons_of_whole_ones(
    directories: Directories, set_present: SetTenants, set_gpu: SetGpu, capsys: Captured
) -> None:
    write_journal(directories)
    set_present(job())
    rules = GateRules(entries=(GateEntry(0, 1, 2, online=True), GateEntry(1, 1, 7, online=False)))
    whole = tuple({0: 12, 17: 3400}.get(reason, 0) for reason in range(24))
    counts = GateCounts(1, cut_launches=1000, parts=25_000, whole_launches=whole)
    set_gpu(DeviceSnapshot(0, 10**12, rules, {1: counts}), None, {})
    assert explanation_lines(capsys)[-4:] == [
        "2. next to tenants of higher priority its long kernels are launched in parts: 1,000 launches in 25,000 parts",
        "   3,400 long launches were whole: the kernel may wait for other blocks",
        "   12 long launches were whole: its modules contain machine code only, or were not loaded as PTX",
        GRANTED,
    ]
    set_gpu(DeviceSnapshot(0, 10**12, rules, {1: GateCounts(1, whole_launches=whole)}), None, {})
    assert "2. its long kernels are launched whole, also next to tenants of higher priority" in explanation_lines(
        capsys
    )


def test_every_reason_of_a_whole_launch_has_a_sentence() -> None:
    pages, texts = ((ROOT / "native" / name).read_text() for name in ("gate/pages.h", "hook/slice/ptx.h"))
    named = {int(number) for number in re.findall(r"CT_GATE_WHOLE_(?!TEXT)\w+ = (\d+)", pages)}
    listed = re.search(r"enum ct_ptx_reason \{(.*?)\}", texts, re.DOTALL)
    assert listed is not None
    in_text = range(8, 7 + len(re.findall(r"CT_PTX_\w+", listed[1])) - 1)  # from 0, which is eligible, to their number
    assert "CT_GATE_WHOLE_TEXT = 7" in pages
    for reason in {*named, *in_text}:
        assert "does not know" not in describe_whole(reason), reason
    assert "does not know" in describe_whole(in_text.stop)


def test_denials_are_explained_with_the_quota_in_use(
    directories: Directories, set_present: SetTenants, set_gpu: SetGpu, capsys: Captured
) -> None:
    write_journal(directories)
    set_present(job())
    set_gpu(None, LedgerSnapshot(0, 0, {1: LedgerAccount(1, 1, 0)}), {})
    assert explanation_lines(capsys)[1] == f"1. {IDLE[0]}", "an account without a line says nothing"
    line = line_of(denied=2, denied_bytes=3 << 30, wanted_bytes=1 << 28)
    set_gpu(None, LedgerSnapshot(0, 0, {1: LedgerAccount(1, 1, 1 << 20, (line,))}), {})
    holds = "   it holds 1MiB of device memory of its quota of 512MiB"
    assert explanation_lines(capsys) == [
        PRESENT,
        "1. an allocation of 256MiB waits: its quota allows it, but the device has not enough free memory",
        holds,
        GRANTED,
        "2. it was denied device memory 2 times, 3GiB in total: that exceeds its quota",
        holds,
        GRANTED,
        f"3. {IDLE[0]}",
        IDLE[1],
    ]


def line_of(**words: int) -> LedgerLine:
    return LedgerLine(**{**dict.fromkeys(LedgerLine.__struct_fields__, 0), **words})


def test_device_state_and_earlier_faults_are_explained(
    directories: Directories, set_present: SetTenants, capsys: Captured
) -> None:
    watch = GpuWatch(Health.UNHEALTHY, 4000, "memory 96%", 4)
    write_journal(
        directories,
        (TimerFired(), [ReportGpuHealth(4, 0, watch)]),
        (TenantHung(1, 1, "gemm", 10**6, 10**9), []),
        (TenantRestarted(2, "exit 1", 2), []),
    )
    set_present(job(restarts=2), watch)
    lines = explanation_lines(capsys)
    assert [line for line in lines if line[0].isdigit()] == [
        f"1. {IDLE[0]}",
        "2. GPU 0 is unhealthy: memory 96%",
        "3. job hangs: kernel gemm has run for 1s, expected 1ms",
        "4. job was restarted (2 times so far) after: exit 1",
    ]
    assert "   journal, turn 4 at (time): 0.000004000 timer fired -> " in lines[4]


def test_online_share_is_explained_with_its_last_change(
    directories: Directories, set_present: SetTenants, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Adjustment(0, 980_000, AdjustCause.JOINED, "its need is not known yet", (), 0, 1)
    then = Adjustment(0, 620_000, AdjustCause.HEADROOM, "p99 9ms of 20ms", (), 0, 1)
    write_journal(
        directories,
        (OnlineShareProposed(first), [SetOnlineShare(4, first, 980_392)]),
        (OnlineShareProposed(then), [SetOnlineShare(5, then, 980_000)]),
    )
    set_present(job())
    assert not any("online keeps" in line for line in explanation_lines(capsys)), "nothing is adjusted by now"
    tenant_list = NodeSnapshot(
        True, 9000, [TenantView(job(), True)], [Gpu("a", 1 << 30)], [GpuWatch()], [OnlineShareSetpoint(0, 620_000)]
    )
    monkeypatch.setattr(explaining, "read_node_snapshot", lambda directories: tenant_list)
    line = "2. GPU 0: online share set to 62% (was 98%): web has headroom, p99 9ms of 20ms"
    assert line in explanation_lines(capsys)


def test_departed_tenant_is_explained_by_actions_then_by_its_exit(directories: Directories, capsys: Captured) -> None:
    write_journal(
        directories,
        (TenantFaulted(1, 1, "cuda", 700), []),
        (TimerFired(), [SignalTenant(5, 2, 1, 1, "term", "it met an error")]),
        (TenantLeft(2, "killed by SIGTERM"), [Revoke(6, 2, "job", 1, 1, "killed by SIGTERM")]),
    )
    lines = [line for line in explanation_lines(capsys) if line.startswith(("job", "1", "2", "3"))]
    assert lines[0] == "job is gone"
    assert lines[1] == "1. job is asked to exit: it met an error"
    assert lines[2].startswith("2. job reported CUDA error 700: ")
    assert lines[3] == "3. job left: killed by SIGTERM"


def test_refused_join_is_explained_with_the_earlier_tenant(directories: Directories, capsys: Captured) -> None:
    refused = Refuse(5, 3, Reject(Reason.NO_MEMORY, "GPU 0 has no room", 10**9))
    write_journal(
        directories,
        (TenantLeft(2, "exit 0"), [Revoke(4, 2, "job", 1, 1, "exit 0")]),
        (TenantJoined(3, 12, 0, JOB), [refused]),
    )
    assert explanation_lines(capsys) == [
        "job is not here: it was refused",
        "1. job was refused: GPU 0 has no room; retry in 1s",
        ENTRY.format(
            turn=5,
            entry="0.000005000 peer 3 joins as job: offline priority 7 memory 512MiB "
            "-> refuse peer 3: no-memory: GPU 0 has no room",
        ),
        "2. job left: exit 0",
        ENTRY.format(turn=4, entry="0.000004000 peer 2 leaves: exit 0 -> free slot 1/1 of job: exit 0"),
    ]


def test_waiting_join_is_explained(directories: Directories, capsys: Captured) -> None:
    write_journal(directories, (TenantJoined(5, 1, 0, TenantSpec(Kind.ONLINE, 2, "more")), []))
    assert explanation_lines(capsys, "more")[:2] == [
        "more is not here yet",
        "1. more waits to join until offline tenants free memory: online priority 2",
    ]


def test_node_that_is_down_is_explained_from_its_journal(directories: Directories, capsys: Captured) -> None:
    machine, journal = NodeMachine(), FileJournal(directories.journal, 1 << 30)
    events: list[Event] = [STARTED, TenantJoined(1, 10, 0, WEB)]
    for now, event in enumerate(events, 1):
        journal.append(now, event, machine.handle(event, now=now))
    journal.close()
    lines = explanation_lines(capsys, "web")
    assert lines[0].endswith("the node is down; this is its last recorded state")
    assert main(["explain", "web", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["tenant"], record["state"], record["is_served"]) == ("web", "here", False)
    assert record["causes"][-1]["turn"] == 2
    assert record["causes"][-1]["ts"].startswith("2023-11-14T22:13:20")


INVALID = "is not a valid tenant name"


@pytest.mark.parametrize("name, message", [("other", "no tenant has this name"), ("no/name", INVALID), ("", INVALID)])
def test_unknown_name_is_reported_in_one_sentence(
    name: str, message: str, directories: Directories, capsys: Captured
) -> None:
    write_journal(directories)
    assert main(["explain", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"cotenant: NAME = {name!r}: {message}")
