"""A crash of the daemon costs no tenant its slot or its work."""

import os
import signal
import socket

import pytest

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.live_grants import read_grant_descriptor
from cotenant.gate.process_pages import PROCESS_BYTES
from cotenant.gate.shared_pages import SealedPage
from cotenant.node import wire
from cotenant.node.directories import listen
from cotenant.node.diurnal_format import decode_profiles
from cotenant.node.model.event import NodeStarted
from cotenant.predict.diurnal_profile import Program
from tests.support.node_processes import BOUND_S, NodeHarness, grants_in, until

pytestmark = pytest.mark.live


def received(peer: socket.socket) -> wire.Request:
    """The next thing that a tenant says."""
    frames = wire.Frames()
    while True:
        data = peer.recv(1 << 16)
        assert data, "it hung up"
        for frame in frames.feed(data):
            return wire.decode_request(frame)


def test_tenants_resume_their_slots_after_a_kill_of_the_daemon(node_harness: NodeHarness) -> None:
    node_harness.node()
    tenants = {name: node_harness.tenant(name) for name in ("a", "b", "c")}
    tenants["b"].terminate()
    assert tenants["b"].wait(BOUND_S) == 143
    before = node_harness.slots()
    assert before == {"a": (0, 1), "c": (2, 1)}
    for _ in range(2):
        node_harness.kill_node()
        node_harness.node()
        until(lambda: node_harness.slots() == before)
    node_harness.tenant("d")
    assert node_harness.slots() == {**before, "d": (1, 2)}
    turns = node_harness.journal()
    assert sum(isinstance(turn.event, NodeStarted) for turn in turns) == 3, "one journal goes on"
    held = {(slot, generation): name for slot, generation, name in grants_in(turns)}
    assert held == {(0, 1): "a", (1, 1): "b", (2, 1): "c", (1, 2): "d"}
    assert node_harness.json("replay", str(node_harness.directories.journal))["reproduced"]
    for name in ("a", "c"):
        assert tenants[name].poll() is None


def test_tenants_resume_their_slots_after_a_stop_of_the_daemon(node_harness: NodeHarness) -> None:
    node = node_harness.node()
    node_harness.tenant("a")
    node.terminate()
    assert node.wait(BOUND_S) == 0
    node_harness.node()
    until(lambda: node_harness.slots() == {"a": (0, 1)})


def test_slot_of_a_dead_tenant_is_freed_after_the_grace(node_harness: NodeHarness) -> None:
    options = ("--reconnect-grace", "8s")  # enough for the one that stays, on a busy machine too
    node_harness.node(*options)
    killed, stays = node_harness.tenant("gone"), node_harness.tenant("stays")
    node_harness.kill_node()
    killed.kill()
    killed.wait(BOUND_S)
    node_harness.node(*options)
    until(lambda: node_harness.names() == ["stays"])
    assert node_harness.endings() == {"gone": "lost: did not reconnect in time"}
    assert stays.poll() is None
    node_harness.tenant("next")
    assert node_harness.slots() == {"next": (0, 2), "stays": (1, 1)}


def test_exit_code_is_kept_without_the_daemon(node_harness: NodeHarness) -> None:
    node_harness.node("--reconnect-grace", "1s")
    tenant = node_harness.start("run", "--name", "a", "--", "sh", "-c", "read line; exit 4", stdin=-1)
    until(lambda: node_harness.names() == ["a"])
    node_harness.kill_node()
    tenant.communicate("\n", timeout=BOUND_S)
    assert tenant.returncode == 4
    node_harness.node("--reconnect-grace", "1s")
    until(lambda: not node_harness.names())


def test_slow_daemon_does_not_cost_a_slot(node_harness: NodeHarness) -> None:
    """The daemon will answer; a tenant that disconnected meanwhile would lose its slot and join as another tenant."""
    node_harness.directories.runtime.mkdir()
    grant = Grant(0, 1, Kind.OFFLINE, 7, 0, 0, 0, -1)
    welcome = wire.encode(wire.Welcome(wire.VERSION, "a", grant, {}))
    with listen(node_harness.directories.tenant_socket, 0o600) as listener:
        tenant = node_harness.start("run", "--start-node", "no", "--hook", "off", "--", "sleep", "600")
        assert tenant.stderr is not None
        with listener.accept()[0] as peer:
            assert isinstance(received(peer), wire.Join)
            peer.sendall(welcome)
        with listener.accept()[0] as peer:
            assert isinstance(received(peer), wire.Resume)
            assert "the node does not answer" in tenant.stderr.readline()
            peer.sendall(welcome)
            peer.sendall(wire.encode(wire.Signal("term", "it is time", may_restart=False)))
            assert isinstance(received(peer), wire.Leave), "it is the same conversation"
    assert tenant.wait(BOUND_S) == 143


@pytest.mark.parametrize("notice", ["it is kept as journal.damaged-1", "is gone"])
def test_daemon_without_its_journal_admits_its_tenants_anew(node_harness: NodeHarness, notice: str) -> None:
    node_harness.node()
    tenant = node_harness.tenant("a")
    node_harness.kill_node()
    if notice == "is gone":
        node_harness.directories.journal.unlink()
    else:
        node_harness.directories.journal.write_bytes(b"this is a letter\n")
    node = node_harness.node()
    until(lambda: "a" in node_harness.slots())
    slot, generation = node_harness.slots()["a"]
    assert slot == 0
    assert generation > 1, "no grant of the lost journal is repeated"
    assert tenant.poll() is None
    node.terminate()
    _, stderr = node.communicate(timeout=BOUND_S)
    assert notice in stderr
    tenant.send_signal(signal.SIGTERM)
    _, messages = tenant.communicate(timeout=BOUND_S)
    assert "the node had no record of this tenant" in messages


def test_torn_journal_is_repaired_and_reported(node_harness: NodeHarness) -> None:
    node = node_harness.node()
    node_harness.tenant("a")
    node_harness.kill_node()
    with node_harness.directories.journal.open("ab") as file:
        file.write(b"\x40\0\0\0\xbf\xff\xff\xffhalf a turn")
    node = node_harness.node()
    until(lambda: node_harness.slots() == {"a": (0, 1)})
    node.terminate()
    _, stderr = node.communicate(timeout=BOUND_S)
    assert "ended in an incomplete turn of 19 bytes, which was removed" in stderr
    assert node_harness.json("replay", str(node_harness.directories.journal))["reproduced"]


def test_pages_are_rewritten_from_the_journal(node_harness: NodeHarness) -> None:
    options = ("--gpu", "v100=16GiB")
    node_harness.node(*options)
    options_of_a = ("--online", "--slo", "50ms", "--memory", "4GiB", "--share", "30%")
    tokens = [token_of(node_harness, "a", *options_of_a), token_of(node_harness, "b")]
    before = [attached_grant(node_harness, token) for token in tokens]
    assert before[0] == Grant(0, 1, Kind.ONLINE, 2, 300_000, 4 << 30, 50_000_000, 0)
    node_harness.kill_node()
    node = node_harness.node(*options)
    until(lambda: len(node_harness.slots()) == 2)
    assert [attached_grant(node_harness, token) for token in tokens] == before
    assert node.poll() is None


def token_of(node_harness: NodeHarness, name: str, *options: str) -> str:
    """Start a tenant, and return the token with which processes of its program attach."""
    path = node_harness.home / name
    script = f"echo $COTENANT_TOKEN > {path}.new; mv {path}.new {path}; sleep 600"
    node_harness.tenant(name, *options, "--", "sh", "-c", script)
    until(path.exists)
    return path.read_text().strip()


def attached_grant(node_harness: NodeHarness, token: str) -> Grant | None:
    """Attach to a tenant as the hook of a process does, and return the grant on the page that the node passes."""
    pages = SealedPage.create("test-process", PROCESS_BYTES)
    frames = wire.Frames(wire.ANSWER_LIMIT_BYTES)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(BOUND_S)
        peer.connect(str(node_harness.directories.tenant_socket))
        socket.send_fds(peer, [wire.encode(wire.Attach(wire.HOOK_VERSION, {}, "", token, "", ""))], [pages.descriptor])
        data, descriptors, _, _ = socket.recv_fds(peer, 1 << 16, 8)
        answer = wire.decode_answer(frames.feed(data)[0])
    pages.close()
    assert isinstance(answer, wire.AttachAnswer), answer
    grant = read_grant_descriptor(descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)
    return grant


def test_journal_rotates_and_each_segment_replays(node_harness: NodeHarness) -> None:
    node_harness.node("--journal-limit", "512B")
    for number in range(6):
        node_harness.run("run", "--name", f"t{number}", "--", "true")
    node_harness.tenant("stays")
    node_harness.kill_node()
    node_harness.node("--journal-limit", "512B")
    until(lambda: node_harness.slots() == {"stays": (0, 7)})
    for name in ("journal", "journal.1"):
        assert node_harness.json("replay", str(node_harness.directories.state / name))["reproduced"]


def test_diurnal_profiles_survive_the_daemon_and_a_damaged_file(
    node_harness: NodeHarness,
) -> None:
    node = node_harness.node("--gpu", "a=16GiB")
    node_harness.tenant("web", "--online", "--slo", "20ms", "--task", "serve", "--", "sleep", "600")

    def is_watched() -> bool:
        tenant_list = node_harness.tenant_list()
        return tenant_list is not None and bool(tenant_list.setpoints)

    def parts_seen() -> dict[Program, int]:
        found, why = decode_profiles(node_harness.directories.diurnal.read_bytes())
        assert not why
        return {program: len(day) for program, day in found.items()}

    until(is_watched)
    node.terminate()
    assert node.wait(BOUND_S) == 0
    web = Program(os.getuid(), "serve")
    assert parts_seen()[web] >= 1
    node_harness.directories.diurnal.write_bytes(b"this is a letter\n")
    node = node_harness.node("--gpu", "a=16GiB")
    until(lambda: "web" in node_harness.slots() and is_watched())
    node.terminate()
    _, stderr = node.communicate(timeout=BOUND_S)
    assert "diurnal.json.damaged-1" in stderr
    assert "Traceback" not in stderr
    assert (node_harness.directories.state / "diurnal.json.damaged-1").read_bytes() == b"this is a letter\n"
    noted = node_harness.run("doctor").stdout
    assert "diurnal.json.damaged-1" in noted
