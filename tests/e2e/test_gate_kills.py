"""Tenants and daemons killed at random: does anybody else lose its seat, and does a slot, page or descriptor leak?"""

import contextlib
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

from cotenant.apps.gate import set_paused, set_priority, set_rules
from cotenant.apps.replay import replay_file
from cotenant.domain.gate import GatePolicy, GateRules, GateSeat
from cotenant.domain.tenant import Kind, TenantSpec, Terms
from cotenant.errors import CotenantError
from cotenant.format import wire
from cotenant.format.config import NodeConfig
from cotenant.live.client import Connection
from cotenant.live.gate import devices_in, path_of
from cotenant.live.ledger import path_of as ledger_of
from cotenant.policy.schedule import roster
from tests.e2e.stage import BOUND_S, Stage, until
from tests.effort import examples

KILLS = examples(60, 500)
NODE_KILLS = 3
SLOTS = 24
OPTIONS = ("--slots", str(SLOTS), "--grace", "10s", "--gpu", "a=64GiB", "--gpu", "b=64GiB")

# Tenants that end themselves by SIGKILL, each in the midst of something; forked, since an import takes too long.
NURSERY = """
import mmap, os, random, signal, sys
from pathlib import Path
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.format import wire
from cotenant.live.client import Connection
from cotenant.policy.schedule import roster

path, kills, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(6)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def live(number, phase):
    spec = TenantSpec(random.Random(number).choice(list(Kind)), number % 10, f"t{number}", share_ppm=1000)
    join, leave = wire.encode(wire.Join(wire.VERSION, spec)), wire.encode(wire.Leave("exit 0"))
    connection = Connection(path)
    if phase == "connected":
        die()
    if phase == "joining":
        connection._socket.sendall(join[: len(join) // 2])
        die()
    if phase == "joined unheard":
        connection._socket.sendall(join)
        die()
    answer, handed = connection.ask(wire.Join(wire.VERSION, spec))
    if not isinstance(answer, wire.Welcome):
        os._exit(1)
    page = mmap.mmap(handed[2], roster.PAGE_BYTES, offset=roster.page_offset(answer.terms.slot))
    page[: number % roster.PAGE_BYTES] = b"x" * (number % roster.PAGE_BYTES)
    if phase == "pausing":
        connection._socket.sendall(wire.encode(wire.Pause(wire.VERSION, [spec.name], False, True)))
    if phase == "leaving":
        connection._socket.sendall(leave[: len(leave) // 2])
    if phase == "left unheard":
        connection._socket.sendall(leave)
    die()

PHASES = ["connected", "joining", "joined unheard", "joined", "pausing", "leaving", "left unheard"]
killed = number = 0
living = set()
while killed < kills:
    number += 1
    phase = chance.choice(PHASES)
    child = os.fork()
    if not child:
        try:
            live(number, phase)
        except Exception:
            os._exit(1)  # no node, or no slot: not a kill
    living.add(child)
    while len(living) >= 6 or (living and killed + len(living) >= kills):
        ended, status = os.wait()
        living.discard(ended)
        if os.WIFSIGNALED(status):
            killed += 1
            print(killed, flush=True)
"""


class Witness:
    """A tenant that stays, and whose seat and page nobody may touch."""

    def __init__(self, stage: Stage, name: str, kind: Kind) -> None:
        self._socket = stage.places.socket
        self._pages = stage.places.pages
        self.name = name
        self._connection = Connection(self._socket)
        answer, handed = self._connection.ask(wire.Join(wire.VERSION, TenantSpec(kind, 3, name)))
        assert isinstance(answer, wire.Welcome)
        self.terms: Terms = answer.terms
        self._seat = GateSeat(self.terms.slot, self.terms.generation, 3, kind is Kind.ONLINE)
        offset = roster.page_offset(self.terms.slot)
        with mmap.mmap(handed[2], roster.PAGE_BYTES, offset=offset) as page:
            page[:] = name.encode() * (roster.PAGE_BYTES // len(name))
        for descriptor in handed:
            os.close(descriptor)

    def look(self) -> None:
        """From the file, as any other tenant would; also while there is no daemon."""
        with path_of(self._pages, self.terms.gpu).open("rb") as file:
            content = file.read()
        assert self._seat in roster.read_roster(content).seats
        begin = roster.page_offset(self.terms.slot)
        assert set(content[begin : begin + roster.PAGE_BYTES]) == set(self.name.encode())

    def come_back(self) -> bool:
        try:
            connection = Connection(self._socket)
            asked = wire.Resume(wire.VERSION, self.terms.slot, self.terms.generation)
            answer, handed = connection.ask(asked)
        except CotenantError:
            return False
        assert isinstance(answer, wire.Welcome), answer
        for descriptor in handed:
            os.close(descriptor)
        self._connection.close()
        self._connection = connection
        return True

    def close(self) -> None:
        self._connection.close()


def opened(pid: int) -> list[str]:
    """What a process has open, pipes and sockets without their numbers."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it closes what it had open for a moment
            links.append(str(entry.readlink()))
    return sorted(link.split(":")[0] if link.startswith(("socket:", "pipe:")) else link for link in links)


def seats(stage: Stage) -> dict[int, GateRules]:
    pages = stage.places.pages
    return {gpu: roster.read_roster(path_of(pages, gpu).read_bytes()) for gpu in devices_in(pages)}


def test_kills_cost_nobody_else_a_seat(stage: Stage) -> None:
    stage.node(*OPTIONS)
    witnesses = [
        Witness(stage, "w0", Kind.ONLINE),
        Witness(stage, "w1", Kind.OFFLINE),
        Witness(stage, "w2", Kind.OFFLINE),
    ]
    assert {witness.terms.gpu for witness in witnesses} == {0, 1}
    command = [sys.executable, "-c", NURSERY, str(stage.places.socket), str(KILLS)]
    killed = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=stage.environ) as nursery:
        for line in nursery.stdout or ():
            killed = int(line)
            for witness in witnesses:
                witness.look()
            if killed % (KILLS // (NODE_KILLS + 1)) == 0 and killed < KILLS:
                restart(stage, witnesses)
    assert killed == KILLS
    assert nursery.returncode == 0
    names = sorted(witness.name for witness in witnesses)
    until(lambda: sorted(stage.names()) == names)
    left = {gpu: [(seat.slot, seat.generation) for seat in rules.seats] for gpu, rules in seats(stage).items()}
    right = {
        gpu: [(one.terms.slot, one.terms.generation) for one in witnesses if one.terms.gpu == gpu] for gpu in (0, 1)
    }
    assert left == right
    check_daemon(stage, len(witnesses))
    for witness in witnesses:
        witness.close()
    until(lambda: not stage.names())
    assert all(not rules.seats for rules in seats(stage).values())
    assert replay_file(stage.places.journal).reproduced


def restart(stage: Stage, witnesses: list[Witness]) -> None:
    """Kill the daemon while tenants come and go, and look at those who stay before, between and after."""
    stage.kill_node()
    for witness in witnesses:
        witness.look()
    stage.node(*OPTIONS)
    for witness in witnesses:
        until(witness.come_back)


def check_daemon(stage: Stage, tenants: int) -> None:
    """Once all is quiet it has its tenants, itself, six descriptors per device and at most two per slot open."""
    pid = stage.node_pid()
    assert pid is not None
    # The listener, the two ends that signals go through, two for each thread: those that ask devices, one writes days.
    sockets = tenants + 9
    pages = stage.places.pages
    files = [str(path(pages, gpu)) for path in (path_of, ledger_of) for gpu in (0, 1)]

    def quiet() -> list[str]:
        found = opened(pid)
        counts = [found.count(file) for file in files]
        return found if (found.count("socket"), counts) == (sockets, [3, 3, 3, 3]) else []  # to read, write and map

    terms = [link for link in until(quiet) if Path(link).name.startswith("terms-")]
    assert len(terms) == 2 * len(set(terms)) <= 2 * SLOTS
    assert [file.name for file in sorted(pages.glob("gate-*"))] == ["gate-0", "gate-1"]
    assert path_of(pages, 0).stat().st_size == roster.file_bytes(SLOTS)


def test_what_was_changed_while_tenants_ran_outlives_the_daemon(stage: Stage) -> None:
    options = ("--gpu", "a=64GiB", "--gate", "fill", "--bound", "300us", "--switch", "10us")
    stage.node(*options)
    job = stage.tenant("job", "--share", "10%", "--", "sleep", "600")
    door = stage.places.socket
    assert stage.run("pause", "job").stdout == "paused: job\n"
    assert stage.run("pause", "jab").returncode == 2
    set_priority(door, "job", 4)
    set_rules(door, NodeConfig(gate="strict"), ["gate"])
    held = GateSeat(0, 1, 4, online=False, paused=True, least_ppm=100_000, limit_ppm=100_000)
    expected = {0: GateRules(GatePolicy.STRICT, 300_000, switch_ns=10_000, seats=(held,))}
    assert seats(stage) == expected
    stage.kill_node()
    assert seats(stage) == expected, "tenants go on under their last rules"
    stage.node(*options)
    until(lambda: stage.slots() == {"job": (0, 1)})
    assert seats(stage) == expected
    [shown] = stage.json("ps")["tenants"]
    assert (shown["status"], shown["priority"]) == ("paused", 4)
    assert set_paused(door, ["job"], all_offline=False, paused=False).tenants == ["job"]
    assert [seat.paused for seat in seats(stage)[0].seats] == [False]
    job.send_signal(signal.SIGKILL)
    job.wait(BOUND_S)
    until(lambda: seats(stage)[0].seats == ())
