"""Does the death of the daemon cost anybody anything?"""

import os
import signal
import socket

from cotenant.domain.day import Program
from cotenant.domain.event import NodeStarted
from cotenant.domain.tenant import Kind, Terms
from cotenant.format import wire
from cotenant.format.days import decode_days
from cotenant.live.directory import listen
from cotenant.live.page import LivePages
from tests.e2e.stage import BOUND_S, Stage, granted, until


def heard(peer: socket.socket) -> wire.Request:
    """The next thing that a tenant says."""
    frames = wire.Frames()
    while True:
        data = peer.recv(1 << 16)
        assert data, "it hung up"
        for frame in frames.feed(data):
            return wire.decode_request(frame)


def test_tenants_of_a_killed_daemon_come_back_to_their_own_slots(stage: Stage) -> None:
    stage.node()
    tenants = {name: stage.tenant(name) for name in ("a", "b", "c")}
    tenants["b"].terminate()
    assert tenants["b"].wait(BOUND_S) == 143
    before = stage.slots()
    assert before == {"a": (0, 1), "c": (2, 1)}
    for _ in range(2):
        stage.kill_node()
        stage.node()
        until(lambda: stage.slots() == before)
    stage.tenant("d")
    assert stage.slots() == {**before, "d": (1, 2)}
    turns = stage.journal()
    assert sum(isinstance(turn.event, NodeStarted) for turn in turns) == 3, "one journal goes on"
    held = {(slot, generation): name for slot, generation, name in granted(turns)}
    assert held == {(0, 1): "a", (1, 1): "b", (2, 1): "c", (1, 2): "d"}
    assert stage.json("replay", str(stage.places.journal))["reproduced"]
    for name in ("a", "c"):
        assert tenants[name].poll() is None


def test_a_daemon_that_was_told_to_stop_finds_its_tenants_again_too(stage: Stage) -> None:
    node = stage.node()
    stage.tenant("a")
    node.terminate()
    assert node.wait(BOUND_S) == 0
    stage.node()
    until(lambda: stage.slots() == {"a": (0, 1)})


def test_a_tenant_that_died_meanwhile_is_freed_after_the_grace(stage: Stage) -> None:
    options = ("--grace", "8s")  # enough for the one that stays, on a busy machine too
    stage.node(*options)
    gone, stays = stage.tenant("gone"), stage.tenant("stays")
    stage.kill_node()
    gone.kill()
    gone.wait(BOUND_S)
    stage.node(*options)
    until(lambda: stage.names() == ["stays"])
    assert stage.endings() == {"gone": "lost: did not come back in time"}
    assert stays.poll() is None
    stage.tenant("next")
    assert stage.slots() == {"next": (0, 2), "stays": (1, 1)}


def test_a_program_that_ended_while_the_daemon_was_dead_keeps_its_exit_code(stage: Stage) -> None:
    stage.node("--grace", "1s")
    tenant = stage.start("run", "--name", "a", "--", "sh", "-c", "read line; exit 4", stdin=-1)
    until(lambda: stage.names() == ["a"])
    stage.kill_node()
    tenant.communicate("\n", timeout=BOUND_S)
    assert tenant.returncode == 4
    stage.node("--grace", "1s")
    until(lambda: not stage.names())


def test_a_place_is_not_lost_to_a_daemon_that_is_slow_to_give_it_back(stage: Stage) -> None:
    """It was asked, and will give it: whoever hung up meanwhile would lose it, and come back as another."""
    stage.places.runtime.mkdir()
    terms = Terms(0, 1, Kind.OFFLINE, 7, 0, 0, 0, -1)
    pages = LivePages(stage.places.pages)
    page = pages.publish(terms, 0)
    welcome = wire.encode(wire.Welcome(wire.VERSION, "a", terms, {}))
    with listen(stage.places.socket, -1) as listener:
        tenant = stage.start("run", "--start-node", "no", "--hook", "off", "--", "sleep", "600")
        assert tenant.stderr is not None
        with listener.accept()[0] as peer:
            assert isinstance(heard(peer), wire.Join)
            socket.send_fds(peer, [welcome], [page])
        with listener.accept()[0] as peer:
            assert isinstance(heard(peer), wire.Resume)
            assert "the node does not answer" in tenant.stderr.readline()
            socket.send_fds(peer, [welcome], [page])
            peer.sendall(wire.encode(wire.Signal("term", "it is time", again=False)))
            assert isinstance(heard(peer), wire.Leave), "it is the same conversation"
    assert tenant.wait(BOUND_S) == 143
    pages.close()


def test_a_daemon_restarted_without_its_journal_takes_its_tenants_in_anew(stage: Stage) -> None:
    stage.node()
    tenant = stage.tenant("a")
    stage.kill_node()
    stage.places.journal.write_bytes(b"this is a letter\n")
    node = stage.node()
    until(lambda: stage.slots() == {"a": (0, 2)})
    assert tenant.poll() is None
    node.terminate()
    _, told = node.communicate(timeout=BOUND_S)
    assert "journal.damaged-1" in told
    tenant.send_signal(signal.SIGTERM)
    _, said = tenant.communicate(timeout=BOUND_S)
    assert "the node no longer knew us" in said


def test_a_torn_journal_is_mended_and_said(stage: Stage) -> None:
    node = stage.node()
    stage.tenant("a")
    stage.kill_node()
    with stage.places.journal.open("ab") as file:
        file.write(b"\x40\0\0\0\xbf\xff\xff\xffhalf a turn")
    node = stage.node()
    until(lambda: stage.slots() == {"a": (0, 1)})
    node.terminate()
    _, told = node.communicate(timeout=BOUND_S)
    assert "ended in a torn turn (19 bytes); dropped it" in told
    assert stage.json("replay", str(stage.places.journal))["reproduced"]


def test_pages_say_what_the_journal_says_whatever_was_on_them(stage: Stage) -> None:
    node = stage.node()
    stage.tenant("a")
    stage.tenant("b")
    stage.kill_node()
    pages = LivePages(stage.places.pages)
    [of_a, of_b] = [pages.read(slot) for slot in (0, 1)]
    assert of_a is not None
    assert of_b is not None
    pages.revoke(0, of_a.generation)
    pages.publish(type(of_b)(7, 3, of_b.kind, 0, 0, 0, 0, -1), 0)
    node = stage.node()
    until(lambda: len(stage.slots()) == 2)
    assert [pages.read(slot) for slot in (0, 1, 7)] == [of_a, of_b, None]
    pages.close()
    assert node.poll() is None


def test_the_journal_of_a_node_with_a_small_limit_rotates_and_each_part_replays(stage: Stage) -> None:
    stage.node("--journal-limit", "512B")
    for number in range(6):
        stage.run("run", "--name", f"t{number}", "--", "true")
    stage.tenant("stays")
    stage.kill_node()
    stage.node("--journal-limit", "512B")
    until(lambda: stage.slots() == {"stays": (0, 7)})
    for name in ("journal", "journal.1"):
        assert stage.json("replay", str(stage.places.state / name))["reproduced"]


def test_the_days_of_a_service_outlive_the_daemon_and_a_damaged_file_of_them_is_set_aside(stage: Stage) -> None:
    node = stage.node("--gpu", "a=16GiB")
    stage.tenant("web", "--online", "--slo", "20ms", "--task", "serve", "--", "sleep", "600")

    def is_watched() -> bool:
        roll = stage.roll()
        return roll is not None and bool(roll.dials)

    def parts_seen() -> dict[Program, int]:
        found, why = decode_days(stage.places.days.read_bytes())
        assert not why
        return {program: len(day) for program, day in found.items()}

    until(is_watched)
    node.terminate()
    assert node.wait(BOUND_S) == 0
    web = Program(os.getuid(), "serve")
    assert parts_seen()[web] >= 1
    stage.places.days.write_bytes(b"this is a letter\n")
    node = stage.node("--gpu", "a=16GiB")
    until(lambda: "web" in stage.slots() and is_watched())
    node.terminate()
    _, told = node.communicate(timeout=BOUND_S)
    assert "days.json.damaged-1" in told
    assert "Traceback" not in told
    assert (stage.places.state / "days.json.damaged-1").read_bytes() == b"this is a letter\n"
    noted = stage.run("doctor").stdout
    assert "days.json.damaged-1" in noted
