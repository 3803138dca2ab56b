"""Does the daemon itself live on when its peers are hostile and its descriptors few?"""

import random
import resource
import socket
import stat

import pytest

from cotenant.format import wire
from tests.e2e.stage import Stage, until
from tests.live.indoors import heard


def stranger(stage: Stage, said: bytes = b"") -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(stage.places.socket))
    connection.settimeout(60)
    connection.sendall(said)
    return connection


def test_strangers_cannot_use_up_the_descriptors_that_tenants_need(stage: Stage) -> None:
    few = 72
    node = stage.node(
        "--slots", "2", "--gpu", "none", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
    )
    strangers = [stranger(stage) for _ in range(100)]
    stage.tenant("a")
    stage.tenant("b")
    strangers += [stranger(stage) for _ in range(100)]
    assert sorted(stage.slots()) == ["a", "b"]
    assert stage.run("run", "--name", "c", "--", "true").returncode == 75
    assert node.poll() is None
    for one in strangers:
        one.close()
    assert stage.endings() == {}


def test_slots_that_the_limit_of_open_files_cannot_hold_are_refused(stage: Stage) -> None:
    few = 48
    done = stage.run("node", "--slots", "64", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few)))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "node.slots = 64" in line
    assert "ulimit -Hn" in line


def test_noise_by_the_thousand_leaves_the_daemon_as_it_was(stage: Stage) -> None:
    node = stage.node()
    chance = random.Random(5)
    opened = _descriptors(node.pid)
    for number in range(1000):
        noise = chance.randbytes(chance.randrange(1, 200))
        if number % 3 == 0:
            noise = len(noise).to_bytes(4, "little") + noise
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(stage.places.socket))
        connection.send(noise)
        if number % 100 == 0:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            heard(connection)
        connection.close()
    until(lambda: _descriptors(node.pid) <= opened)
    stage.tenant("a")
    assert stage.slots() == {"a": (0, 1)}
    assert node.poll() is None


def _descriptors(pid: int) -> int:
    from pathlib import Path

    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_patience_is_real_too(stage: Stage) -> None:
    stage.node()
    half = stranger(stage, wire.encode(wire.List(wire.VERSION))[:-1])
    assert stage.roll() is not None, "nobody waits for the one who holds half a frame open"
    assert heard(half) == [wire.Wrong("nothing complete came for too long")]


@pytest.mark.parametrize("options, mode, directory", [([], 0o600, 0o700), (["--group", "root"], 0o660, 0o710)])
def test_the_door_opens_to_the_owner_or_to_a_group(stage: Stage, options: list[str], mode: int, directory: int) -> None:
    import grp
    import os

    if options:
        options = ["--group", grp.getgrgid(os.getegid()).gr_name]
    stage.node(*options)
    assert stat.S_IMODE(stage.places.socket.stat().st_mode) == mode
    assert stat.S_IMODE(stage.places.runtime.stat().st_mode) == directory
    assert stat.S_IMODE(stage.places.state.stat().st_mode) == 0o700
    assert stat.S_IMODE(stage.places.journal.stat().st_mode) == 0o600
