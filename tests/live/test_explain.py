"""Does `cotenant explain` say why in plain words, the most binding first, with the journal's entry behind it?"""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cotenant import _native
from cotenant.apps import explain as explaining
from cotenant.apps import explain_gate
from cotenant.apps.roll import Roll
from cotenant.cli import main
from cotenant.domain.action import Action, Adjusted, Confirm, Grant, Refuse, Revoke, Signal, Watch
from cotenant.domain.control import Adjustment, Cause, Dial
from cotenant.domain.event import (
    Event,
    EvictAsked,
    NodeSettings,
    NodeStarted,
    SharesAdjusted,
    TenantFaulted,
    TenantHangs,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantsPaused,
    Woke,
)
from cotenant.domain.gate import GateRules, GateSeat
from cotenant.domain.gpu import Gpu
from cotenant.domain.ledger import LedgerAccount, LedgerLine, LedgerLook
from cotenant.domain.plan import Reason, Reject
from cotenant.domain.protect import GpuWatch, Health, Stage, Standing
from cotenant.domain.tenant import Kind, Tenant, TenantSpec, TenantView, Terms
from cotenant.live.directory import Places
from cotenant.live.gate import LiveGates
from cotenant.live.journal import FileJournal
from cotenant.live.ledger import LiveLedgers
from cotenant.machine.node import NodeMachine

STARTED = NodeStarted(NodeSettings(4, 10, gpus=(Gpu("a", 1 << 30),)), "1.0", 1_700_000_000_000_000_000)
WEB, JOB = TenantSpec(Kind.ONLINE, 2, "web"), TenantSpec(Kind.OFFLINE, 7, "job", memory_bytes=1 << 29)
WEB_TERMS = Terms(0, 1, Kind.ONLINE, 2, 0, 0, 0, 0)
JOB_TERMS = Terms(1, 1, Kind.OFFLINE, 7, 0, 1 << 29, 0, 0)
JOINED: list[tuple[Event, list[Action]]] = [
    (STARTED, []),
    (TenantJoined(1, 10, 0, WEB), [Grant(2, 1, "web", WEB_TERMS)]),
    (TenantJoined(2, 11, 0, JOB), [Grant(3, 2, "job", JOB_TERMS)]),
]
Captured = pytest.CaptureFixture[str]
SetRoll = Callable[..., None]
HERE = "job is here: slot 1/1 on GPU 0 (a), offline at priority 7"
ENTRY = "   journal, turn {turn} at (time): {entry}"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("cotenant.apps.show_explain.time_of_day", lambda unix_ns: "(time)")
    (tmp_path / "config.toml").touch()
    (tmp_path / "state").mkdir()
    return Places(tmp_path / "run", tmp_path / "state")


def on_record(places: Places, *more: tuple[Event, list[Action]]) -> None:
    journal = FileJournal(places.journal, 1 << 30)
    for number, (event, actions) in enumerate([*JOINED, *more], 1):
        journal.append(number * 1000, event, actions)
    journal.close()


def job(standing: Standing | None = None, **more: object) -> Tenant:
    made = Tenant("job", JOB_TERMS, JOB, 11, 0, 3000, standing=standing or Standing())
    return msgspec.structs.replace(made, **more)


@pytest.fixture
def is_here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_roll(tenant: Tenant, watch: GpuWatch | None = None, *, connected: bool = True) -> None:
        web = TenantView(Tenant("web", WEB_TERMS, WEB, 10, 0, 2000), True)
        roll = Roll(True, 9000, [web, TenantView(tenant, connected)], [Gpu("a", 1 << 30)], [watch or GpuWatch()])
        monkeypatch.setattr(explaining, "roll_of", lambda places: roll)

    return set_roll


def told(capsys: Captured, name: str = "job") -> list[str]:
    assert main(["explain", name]) == 0
    return capsys.readouterr().out.splitlines()


GRANTED = ENTRY.format(
    turn=3, entry="0.000003000 peer 2 joins as job: offline priority 7 memory 512MiB -> grant job slot 1/1 on GPU 0"
)
IDLE = ["nothing holds it back: it has launched nothing on its device yet", GRANTED]


@pytest.mark.parametrize(
    "stage, words",
    [
        (Stage.DRAINING, "it is on its way out: its launches wait until the work that it announced is over"),
        (Stage.TERMINATING, "it is on its way out: it was asked to end, and may still launch what it takes for that"),
        (Stage.FINISHING, "it is on its way out: its time to end by itself is over, and it is killed soon"),
        (Stage.KILLED, "it was killed, and its end is awaited"),
        (Stage.SUSPENDING, "it is being suspended: its device memory moves to the host"),
        (Stage.SUSPENDED, "it is suspended: its device memory is on the host until there is room again"),
        (Stage.RESTORING, "it is coming back: its memory moves from the host to the device"),
    ],
)  # fmt: skip
def test_where_it_stands_comes_first(
    stage: Stage, words: str, places: Places, is_here: SetRoll, capsys: Captured
) -> None:
    on_record(places, (EvictAsked(9, 0, True, ("job",)), [Confirm(4, 9, ("job",), GateRules())]))
    is_here(job(Standing(stage, "evicted by user 0", 4, 4000, 9000 + 10**9)))
    entry = ENTRY.format(turn=4, entry="0.000004000 peer 9 evicts job -> confirm to peer 9: job")
    lines = told(capsys)
    assert lines[:3] == [HERE, f"1. {words}, for at most 1s more (evicted by user 0)", entry]
    assert lines[3:] == [f"2. {IDLE[0]}", IDLE[1]]


def test_a_pause_and_an_absence_are_said_with_the_remedy(places: Places, is_here: SetRoll, capsys: Captured) -> None:
    paused = TenantsPaused(9, 0, True, ("job",), False, True)
    on_record(places, (paused, [Confirm(4, 9, ("job",), GateRules())]))
    is_here(job(paused=True), connected=False)
    assert told(capsys) == [
        HERE,
        "1. it is away: the node restarted, and `cotenant run` has not come back to it yet",
        GRANTED,
        "2. somebody paused it, so that it launches nothing; let it go on with: cotenant resume job",
        ENTRY.format(turn=4, entry="0.000004000 peer 9 pauses job -> confirm to peer 9: job"),
        f"3. {IDLE[0]}",
        IDLE[1],
    ]


def test_the_gate_s_own_answer_is_said_with_who_is_above(
    places: Places, is_here: SetRoll, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_record(places)
    is_here(job())
    places.runtime.mkdir()
    gates = LiveGates(places.pages, 4)
    gates.seat(0, GateRules(seats=(GateSeat(0, 1, 2, online=True), GateSeat(1, 1, 7, online=False))))
    now = 10**12
    monkeypatch.setattr(explain_gate, "monotonic_ns", lambda: now + 1000)
    web = _native.Gate(gates._files[0].memory, 0, 1)
    web.announce((10**8, 10**8, 2 * 10**8, 3 * 10**8, 1), now)
    waits = _native.Gate(gates._files[0].memory, 1, 1)
    assert not waits.ask((10**6, 10**6, 0, 0, 1), now, now)[0]
    lines = told(capsys)
    assert lines == [
        HERE,
        "1. it waits at the gate: work of web (priority 2) still runs",
        "   so in 20 of 20 looks within 0.2 s",
        GRANTED,
    ]
    waits.waited(now, now + 10**9)
    lines = told(capsys)
    assert lines[1] == "1. nothing holds it back: it did not wait at the gate in any of 20 looks"
    assert "1 of them waited, 1s in all" in lines[2]
    del web, waits
    gates.close()


def test_denials_are_said_with_what_it_holds_of_its_quota(
    places: Places, is_here: SetRoll, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_record(places)
    is_here(job())
    places.runtime.mkdir()
    ledgers = LiveLedgers(places.pages, 4)
    ledgers.grant(0, 1, 1)
    assert told(capsys)[1] == f"1. {IDLE[0]}", "an account without a line says nothing"
    line = line_of(slot=1, denied=2, denied_bytes=3 << 30, wanted_bytes=1 << 28)
    look = LedgerLook(0, 0, {1: LedgerAccount(1, 1, 1 << 20, (line,))})
    monkeypatch.setattr(explain_gate, "look_at_ledger", lambda pages, gpu: look)
    holds = "   it holds 1MiB of device memory of its quota of 512MiB"
    assert told(capsys) == [
        HERE,
        "1. an allocation of 256MiB waits: its quota allows it, but the device has no room",
        holds,
        GRANTED,
        "2. it was denied device memory 2 times, 3GiB in all: that is past its quota",
        holds,
        GRANTED,
        f"3. {IDLE[0]}",
        IDLE[1],
    ]
    ledgers.close()


def line_of(**words: int) -> LedgerLine:
    return LedgerLine(**{**dict.fromkeys(LedgerLine.__struct_fields__, 0), "generation": 1, **words})


def test_the_device_s_state_and_earlier_troubles_are_said_too(
    places: Places, is_here: SetRoll, capsys: Captured
) -> None:
    watch = GpuWatch(Health.UNHEALTHY, 4000, "memory 96%", 4)
    on_record(
        places,
        (Woke(), [Watch(4, 0, watch)]),
        (TenantHangs(1, 1, "gemm", 10**6, 10**9), []),
        (TenantRestarted(2, "exit 1", 2), []),
    )
    is_here(job(restarts=2), watch)
    lines = told(capsys)
    assert [line for line in lines if line[0].isdigit()] == [
        f"1. {IDLE[0]}",
        "2. GPU 0 is unhealthy: memory 96%",
        "3. job hangs: kernel gemm has run for 1s, expected 1ms",
        "4. job was started again (2 times by now) after: exit 1",
    ]
    assert "   journal, turn 4 at (time): 0.000004000 woke -> " in lines[4]


def test_what_online_keeps_of_its_device_is_said_with_the_last_change(
    places: Places, is_here: SetRoll, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Adjustment(0, 980_000, Cause.JOINED, "nobody knows yet what it needs", (), 0, 1)
    then = Adjustment(0, 620_000, Cause.ROOM, "p99 9ms of 20ms", (), 0, 1)
    on_record(
        places,
        (SharesAdjusted(first), [Adjusted(4, first, 980_392)]),
        (SharesAdjusted(then), [Adjusted(5, then, 980_000)]),
    )
    is_here(job())
    assert not any("online keeps" in line for line in told(capsys)), "nothing is adjusted by now"
    roll = Roll(True, 9000, [TenantView(job(), True)], [Gpu("a", 1 << 30)], [GpuWatch()], [Dial(0, 620_000)])
    monkeypatch.setattr(explaining, "roll_of", lambda places: roll)
    said = "2. GPU 0: online keeps 62% (was 98%): web: room, p99 9ms of 20ms"
    assert said in told(capsys)


def test_one_that_is_gone_is_explained_by_what_was_done_to_it_then_by_its_own_end(
    places: Places, capsys: Captured
) -> None:
    on_record(
        places,
        (TenantFaulted(1, 1, "cuda", 700), []),
        (Woke(), [Signal(5, 2, 1, 1, "term", "it met an error")]),
        (TenantLeft(2, "killed by SIGTERM"), [Revoke(6, 2, "job", 1, 1, "killed by SIGTERM")]),
    )
    lines = [line for line in told(capsys) if line.startswith(("job", "1", "2", "3"))]
    assert lines[0] == "job is gone"
    assert lines[1] == "1. job is asked to end: it met an error"
    assert lines[2].startswith("2. job met CUDA error 700: ")
    assert lines[3] == "3. job left: killed by SIGTERM"


def test_one_whose_join_was_refused_is_explained_and_what_it_was_before(places: Places, capsys: Captured) -> None:
    refused = Refuse(5, 3, Reject(Reason.NO_MEMORY, "GPU 0 has no room", 10**9))
    on_record(
        places,
        (TenantLeft(2, "exit 0"), [Revoke(4, 2, "job", 1, 1, "exit 0")]),
        (TenantJoined(3, 12, 0, JOB), [refused]),
    )
    assert told(capsys) == [
        "job is not here: it was refused",
        "1. job was refused: GPU 0 has no room; worth another try in 1s",
        ENTRY.format(
            turn=5,
            entry="0.000005000 peer 3 joins as job: offline priority 7 memory 512MiB "
            "-> refuse peer 3: no-memory: GPU 0 has no room",
        ),
        "2. job left: exit 0",
        ENTRY.format(turn=4, entry="0.000004000 peer 2 leaves: exit 0 -> free slot 1/1 of job: exit 0"),
    ]


def test_one_that_waits_to_join_is_not_here_yet(places: Places, capsys: Captured) -> None:
    on_record(places, (TenantJoined(5, 1, 0, TenantSpec(Kind.ONLINE, 2, "more")), []))
    assert told(capsys, "more")[:2] == [
        "more is not here yet",
        "1. more waits to join until others make room: online priority 2",
    ]


def test_a_node_that_is_down_is_explained_from_its_journal(places: Places, capsys: Captured) -> None:
    machine, journal = NodeMachine(), FileJournal(places.journal, 1 << 30)
    events: list[Event] = [STARTED, TenantJoined(1, 10, 0, WEB)]
    for now, event in enumerate(events, 1):
        journal.append(now, event, machine.handle(event, now=now))
    journal.close()
    lines = told(capsys, "web")
    assert lines[0].endswith("the node is down, so this is the last that is on record")
    assert main(["explain", "web", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["tenant"], record["state"], record["is_served"]) == ("web", "here", False)
    assert record["causes"][-1]["turn"] == 2
    assert record["causes"][-1]["ts"].startswith("2023-11-14T22:13:20")


@pytest.mark.parametrize("name", ["nobody", "no/name", ""])
def test_a_name_that_nobody_has_gets_one_sentence(name: str, places: Places, capsys: Captured) -> None:
    on_record(places)
    assert main(["explain", name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"cotenant: NAME = {name!r}: no tenant ")
