"""Random kills of tenants and daemons cost no other tenant its entry and leak no slot, page or descriptor."""

import contextlib
import functools
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, ProcessEntry
from cotenant.node.client.commands import set_paused, set_priority, set_rules
from cotenant.node.client.connection import read_activity
from cotenant.node.config.file import NodeConfig
from cotenant.simulate.replay import replay_file
from tests.support.attached_tenants import AttachedTenant, View
from tests.support.effort import examples
from tests.support.node_processes import BOUND_S, NodeHarness, until

pytestmark = pytest.mark.live

KILLS = examples(60, 500)
NODE_KILLS = 3
SLOTS = 24
OPTIONS = ("--slots", str(SLOTS), "--reconnect-grace", "10s", "--gpu", "a=64GiB", "--gpu", "b=64GiB")
ONLINE = "w0"

# Tenants that end themselves by SIGKILL, each in the midst of something; forked, since an import takes too long.
NURSERY = """
import os, random, signal, socket, sys, time
from pathlib import Path
from cotenant.gate.grant import Kind
from cotenant.gate.process_pages import PROCESS_BYTES
from cotenant.gate.shared_pages import SealedPage
from cotenant.node.directories import Directories
from cotenant.node.model.tenant import TenantSpec
from cotenant.node import wire
from cotenant.node.client.connection import Connection

directories = Directories(Path(sys.argv[1]), Path(sys.argv[1]))
kills, chance = int(sys.argv[2]), random.Random(6)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def attach(token, part):
    page = SealedPage.create("cotenant-process", PROCESS_BYTES)
    page.memory[:] = random.randbytes(PROCESS_BYTES)
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect(str(directories.tenant_socket))
    message = wire.encode(wire.Attach(wire.HOOK_VERSION, {}, "", token, "", ""))
    socket.send_fds(peer, [message[: int(part * len(message))]], [page.descriptor])
    return peer, page

def attached(token):
    peer, page = attach(token, 1)
    frames, answers = wire.Frames(), []
    while not answers:
        data, _, _, _ = socket.recv_fds(peer, 1 << 16, 3)
        if not data:
            os._exit(1)
        answers = frames.feed(data)
    generation = wire.decode_answer(answers[0]).process_generation
    page.memory[40:48] = generation.to_bytes(8, "little")  # of the gate page: the node reads what it says now
    page.memory[4096:4104] = generation.to_bytes(8, "little")  # of the ledger page

def live(number, phase):
    spec = TenantSpec(random.Random(number).choice(list(Kind)), number % 10, f"t{number}", share_ppm=1000)
    join, leave = wire.encode(wire.Join(wire.VERSION, spec)), wire.encode(wire.Leave("exit 0"))
    connection = Connection(directories.tenant_socket)
    if phase == "connected":
        die()
    if phase == "joining":
        connection._socket.sendall(join[: len(join) // 2])
        die()
    if phase == "joined unheard":
        connection._socket.sendall(join)
        die()
    answer, _ = connection.ask(wire.Join(wire.VERSION, spec))
    if not isinstance(answer, wire.Welcome):
        os._exit(1)
    token = answer.environment["COTENANT_TOKEN"]
    if phase == "attaching":
        attach(token, 0.5)
    if phase == "attached unheard":
        attach(token, 1)
    if phase in ("attached", "pausing", "leaving", "left unheard"):
        attached(token)
    if phase == "pausing":
        operator = Connection(directories.operator_socket)
        operator._socket.sendall(wire.encode(wire.Pause(wire.VERSION, [spec.name], False, True)))
    if phase == "leaving":
        connection._socket.sendall(leave[: len(leave) // 2])
    if phase == "left unheard":
        connection._socket.sendall(leave)
    die()

PHASES = ["connected", "joining", "joined unheard", "joined"]
PHASES += ["attaching", "attached unheard", "attached", "pausing", "leaving", "left unheard"]
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
        else:
            time.sleep(0.02)
"""


def check(observed: list[AttachedTenant]) -> None:
    """Check that each process still sees the entries and pages of all; this needs no daemon."""
    for tenant in observed:
        view = tenant.look()
        for other in observed:
            if other.place.gpu == tenant.place.gpu:
                check_entry(view, other)


def check_entry(view: View, tenant: AttachedTenant) -> None:
    place = tenant.place
    entry = GateEntry(place.slot, 1, 3, tenant.name == ONLINE)
    assert ProcessEntry(place.index, place.process_generation, place.slot, entry) in view.processes
    assert view.pages[place.index] == (place.process_generation, tenant.digest)


def see_only_themselves(tenants: list[AttachedTenant]) -> bool:
    """Return whether the processes of these tenants are the only ones in the table of their device."""
    return all(len(tenant.look().processes) == len(tenants) for tenant in tenants)


def opened(pid: int) -> Counter[str]:
    """Return how often a process has each file open, pipes and sockets without their numbers."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it closes what it had open for a moment
            links.append(str(entry.readlink()))
    return Counter(link.split(":")[0] if link.startswith(("socket:", "pipe:")) else link for link in links)


def entries(node_harness: NodeHarness) -> dict[int, GateRules]:
    snapshots = [gpu.gate for gpu in read_activity(node_harness.directories).gpus]
    return {snapshot.gpu: snapshot.rules for snapshot in snapshots if snapshot is not None}


def test_random_kills_cost_no_other_tenant_its_entry(node_harness: NodeHarness) -> None:
    node_harness.node(*OPTIONS)
    observed = [
        AttachedTenant(node_harness, ONLINE, "--online", "--priority", "3"),
        AttachedTenant(node_harness, "w1", "--priority", "3"),
        AttachedTenant(node_harness, "w2", "--priority", "3"),
    ]
    slots = node_harness.slots()
    assert [slots[tenant.name] for tenant in observed] == [(0, 1), (1, 1), (2, 1)]
    assert {tenant.place.gpu for tenant in observed} == {0, 1}
    command = [sys.executable, "-c", NURSERY, str(node_harness.directories.runtime), str(KILLS)]
    killed = 0
    nursery = node_harness.open(command, stderr=None)
    for line in nursery.stdout or ():
        killed = int(line)
        check(observed)
        if killed % (KILLS // (NODE_KILLS + 1)) == 0 and killed < KILLS:
            restart(node_harness, observed)
    assert killed == KILLS
    assert nursery.wait(BOUND_S) == 0
    until(lambda: sorted(node_harness.names()) == sorted(slots))  # also those that were killed without a node are gone
    assert node_harness.slots() == slots
    for gpu, rules in entries(node_harness).items():
        on_gpu = [tenant for tenant in observed if tenant.place.gpu == gpu]
        assert [entry.slot for entry in rules.entries] == [tenant.place.slot for tenant in on_gpu]
        until(functools.partial(see_only_themselves, on_gpu))
    check(observed)
    check_daemon(node_harness, len(observed))
    for tenant in observed:
        tenant.close()
    until(lambda: not node_harness.names())
    assert all(not rules.entries for rules in entries(node_harness).values())
    assert replay_file(node_harness.directories.journal).reproduced


def restart(node_harness: NodeHarness, observed: list[AttachedTenant]) -> None:
    """Kill the daemon while tenants join and leave; check the observed tenants before, between and after."""
    node_harness.kill_node()
    check(observed)
    node_harness.node(*OPTIONS)
    for tenant in observed:
        tenant.reattach()
    until(lambda: {tenant.name for tenant in observed} <= set(node_harness.slots()))


def check_daemon(node_harness: NodeHarness, tenants: int) -> None:
    """Once all is quiet the daemon has only its own descriptors open and those of its tenants and their processes."""
    pid = node_harness.node_pid()
    assert pid is not None
    pages = [f"/memfd:cotenant-{page}-{gpu} (deleted)" for page in ("table", "arbitration") for gpu in (0, 1)]
    expected = Counter(dict.fromkeys(pages, 2))  # one to pass on, and one of the mapping
    expected["/memfd:cotenant-process (deleted)"] = 2 * tenants
    # Both listeners, the two ends that signals go through, two for each thread: those that ask devices, one writes
    # diurnal profiles, one measures devices. Of each tenant, the connections of its parent and of its process.
    expected["socket"] = 12 + 2 * tenants
    expected["anon_inode:[pidfd]"] = 4 * tenants  # one of each connection, and one of each process in the registry

    def quiet() -> bool:
        links = {link: count for link, count in opened(pid).items() if link in expected or "memfd" in link}
        grants = links.pop("/memfd:cotenant-grant (deleted)", 0)
        return links == expected and grants in {2 * tenants, 2 * tenants + 2}  # the next tenant's page may exist

    until(quiet)


def test_changes_made_while_tenants_run_survive_the_daemon(node_harness: NodeHarness) -> None:
    options = ("--gpu", "a=64GiB", "--gate", "fill", "--bound", "300us", "--switch", "10us")
    node_harness.node(*options)
    job = AttachedTenant(node_harness, "job", "--share", "10%")
    directories = node_harness.directories
    assert node_harness.run("pause", "job").stdout == "paused: job\n"
    assert node_harness.run("pause", "jab").returncode == 2
    set_priority(directories, "job", 4)
    set_rules(directories, NodeConfig(gate="strict"), ["gate"])
    held = GateEntry(0, 1, 4, online=False, paused=True, guaranteed_ppm=100_000, limit_ppm=100_000)
    expected = GateRules(GatePolicy.STRICT, 300_000, switch_ns=10_000, entries=(held,))
    assert entries(node_harness) == {0: expected}
    assert job.look().rules == expected
    node_harness.kill_node()
    assert job.look().rules == expected, "tenants go on under their last rules"
    node_harness.node(*options)
    until(lambda: node_harness.slots() == {"job": (0, 1)})
    assert entries(node_harness) == {0: expected}
    job.reattach()
    assert job.look().rules == expected
    [shown] = node_harness.json("ps")["tenants"]
    assert (shown["status"], shown["priority"]) == ("paused", 4)
    assert set_paused(directories, ["job"], all_offline=False, paused=False).tenants == ["job"]
    assert [entry.paused for entry in job.look().rules.entries] == [False]
    job.run.send_signal(signal.SIGKILL)
    job.run.wait(BOUND_S)
    until(lambda: entries(node_harness)[0].entries == ())
