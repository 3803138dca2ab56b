"""Random kills of tenants and daemons cost no other tenant its entry and leak no slot, page or descriptor."""

import contextlib
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.errors import CotenantError
from cotenant.gate import tenant_table
from cotenant.gate.gate_file import devices_in, gate_path
from cotenant.gate.grant import Grant, Kind
from cotenant.gate.ledger_file import ledger_path
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from cotenant.node import wire
from cotenant.node.client.commands import set_paused, set_priority, set_rules
from cotenant.node.client.connection import Connection
from cotenant.node.config.file import NodeConfig
from cotenant.node.model.tenant import TenantSpec
from cotenant.simulate.replay import replay_file
from tests.support.effort import examples
from tests.support.node_processes import BOUND_S, NodeHarness, until

pytestmark = pytest.mark.live

KILLS = examples(60, 500)
NODE_KILLS = 3
SLOTS = 24
OPTIONS = ("--slots", str(SLOTS), "--reconnect-grace", "10s", "--gpu", "a=64GiB", "--gpu", "b=64GiB")

# Tenants that end themselves by SIGKILL, each in the midst of something; forked, since an import takes too long.
NURSERY = """
import mmap, os, random, signal, sys
from pathlib import Path
from cotenant.gate.grant import Kind
from cotenant.node.model.tenant import TenantSpec
from cotenant.node import wire
from cotenant.node.client.connection import Connection
from cotenant.gate import tenant_table

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
    page = mmap.mmap(handed[2], tenant_table.PAGE_BYTES, offset=tenant_table.page_offset(answer.grant.slot))
    page[: number % tenant_table.PAGE_BYTES] = b"x" * (number % tenant_table.PAGE_BYTES)
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


class ObservedTenant:
    """A tenant that runs during the whole test, and whose entry and page must not change."""

    def __init__(self, node_harness: NodeHarness, name: str, kind: Kind) -> None:
        self._socket = node_harness.directories.socket
        self._pages = node_harness.directories.pages
        self.name = name
        self._connection = Connection(self._socket)
        answer, handed = self._connection.ask(wire.Join(wire.VERSION, TenantSpec(kind, 3, name)))
        assert isinstance(answer, wire.Welcome)
        self.grant: Grant = answer.grant
        self._entry = GateEntry(self.grant.slot, self.grant.generation, 3, kind is Kind.ONLINE)
        offset = tenant_table.page_offset(self.grant.slot)
        with mmap.mmap(handed[2], tenant_table.PAGE_BYTES, offset=offset) as page:
            page[:] = name.encode() * (tenant_table.PAGE_BYTES // len(name))
        for descriptor in handed:
            os.close(descriptor)

    def check(self) -> None:
        """Check entry and page in the file, as any other tenant would; this needs no daemon."""
        with gate_path(self._pages, self.grant.gpu).open("rb") as file:
            content = file.read()
        assert self._entry in tenant_table.read_tenant_table(content).entries
        begin = tenant_table.page_offset(self.grant.slot)
        assert set(content[begin : begin + tenant_table.PAGE_BYTES]) == set(self.name.encode())

    def resume(self) -> bool:
        try:
            connection = Connection(self._socket)
            request = wire.Resume(wire.VERSION, self.grant.slot, self.grant.generation)
            answer, handed = connection.ask(request)
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
    """Return the open files of a process, pipes and sockets without their numbers."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it closes what it had open for a moment
            links.append(str(entry.readlink()))
    return sorted(link.split(":")[0] if link.startswith(("socket:", "pipe:")) else link for link in links)


def entries(node_harness: NodeHarness) -> dict[int, GateRules]:
    pages = node_harness.directories.pages
    return {gpu: tenant_table.read_tenant_table(gate_path(pages, gpu).read_bytes()) for gpu in devices_in(pages)}


def test_random_kills_cost_no_other_tenant_its_entry(node_harness: NodeHarness) -> None:
    node_harness.node(*OPTIONS)
    observed = [
        ObservedTenant(node_harness, "w0", Kind.ONLINE),
        ObservedTenant(node_harness, "w1", Kind.OFFLINE),
        ObservedTenant(node_harness, "w2", Kind.OFFLINE),
    ]
    assert {tenant.grant.gpu for tenant in observed} == {0, 1}
    command = [sys.executable, "-c", NURSERY, str(node_harness.directories.socket), str(KILLS)]
    killed = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=node_harness.environ) as nursery:
        for line in nursery.stdout or ():
            killed = int(line)
            for tenant in observed:
                tenant.check()
            if killed % (KILLS // (NODE_KILLS + 1)) == 0 and killed < KILLS:
                restart(node_harness, observed)
    assert killed == KILLS
    assert nursery.returncode == 0
    names = sorted(tenant.name for tenant in observed)
    until(lambda: sorted(node_harness.names()) == names)
    left = {
        gpu: [(entry.slot, entry.generation) for entry in rules.entries] for gpu, rules in entries(node_harness).items()
    }
    right = {
        gpu: [(one.grant.slot, one.grant.generation) for one in observed if one.grant.gpu == gpu] for gpu in (0, 1)
    }
    assert left == right
    check_daemon(node_harness, len(observed))
    for tenant in observed:
        tenant.close()
    until(lambda: not node_harness.names())
    assert all(not rules.entries for rules in entries(node_harness).values())
    assert replay_file(node_harness.directories.journal).reproduced


def restart(node_harness: NodeHarness, observed: list[ObservedTenant]) -> None:
    """Kill the daemon while tenants join and leave; check the observed tenants before, between and after."""
    node_harness.kill_node()
    for tenant in observed:
        tenant.check()
    node_harness.node(*OPTIONS)
    for tenant in observed:
        until(tenant.resume)


def check_daemon(node_harness: NodeHarness, tenants: int) -> None:
    """Once all is quiet it has its tenants, itself, six descriptors per device and at most two per slot open."""
    pid = node_harness.node_pid()
    assert pid is not None
    # The listener, the two ends that signals go through, two for each thread: those that ask devices, one writes days.
    sockets = tenants + 9
    pages = node_harness.directories.pages
    files = [str(path(pages, gpu)) for path in (gate_path, ledger_path) for gpu in (0, 1)]

    def quiet() -> list[str]:
        found = opened(pid)
        counts = [found.count(file) for file in files]
        return found if (found.count("socket"), counts) == (sockets, [3, 3, 3, 3]) else []  # to read, write and map

    grant = [link for link in until(quiet) if Path(link).name.startswith("grant-")]
    assert len(grant) == 2 * len(set(grant)) <= 2 * SLOTS
    assert [file.name for file in sorted(pages.glob("gate-*"))] == ["gate-0", "gate-1"]
    assert gate_path(pages, 0).stat().st_size == tenant_table.file_bytes(SLOTS)


def test_changes_made_while_tenants_run_survive_the_daemon(node_harness: NodeHarness) -> None:
    options = ("--gpu", "a=64GiB", "--gate", "fill", "--bound", "300us", "--switch", "10us")
    node_harness.node(*options)
    job = node_harness.tenant("job", "--share", "10%", "--", "sleep", "600")
    socket_path = node_harness.directories.socket
    assert node_harness.run("pause", "job").stdout == "paused: job\n"
    assert node_harness.run("pause", "jab").returncode == 2
    set_priority(socket_path, "job", 4)
    set_rules(socket_path, NodeConfig(gate="strict"), ["gate"])
    held = GateEntry(0, 1, 4, online=False, paused=True, guaranteed_ppm=100_000, limit_ppm=100_000)
    expected = {0: GateRules(GatePolicy.STRICT, 300_000, switch_ns=10_000, entries=(held,))}
    assert entries(node_harness) == expected
    node_harness.kill_node()
    assert entries(node_harness) == expected, "tenants go on under their last rules"
    node_harness.node(*options)
    until(lambda: node_harness.slots() == {"job": (0, 1)})
    assert entries(node_harness) == expected
    [shown] = node_harness.json("ps")["tenants"]
    assert (shown["status"], shown["priority"]) == ("paused", 4)
    assert set_paused(socket_path, ["job"], all_offline=False, paused=False).tenants == ["job"]
    assert [entry.paused for entry in entries(node_harness)[0].entries] == [False]
    job.send_signal(signal.SIGKILL)
    job.wait(BOUND_S)
    until(lambda: entries(node_harness)[0].entries == ())
