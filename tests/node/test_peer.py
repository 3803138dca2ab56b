"""The identity of a peer: what the kernel says, also about processes in other namespaces."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.errors import ConfigError
from cotenant.node.config.file import decode_config, validate
from cotenant.node.daemon.access import Access
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.peer import close_identity, has_ended, identify, parse_cgroup, status_words

pytestmark = pytest.mark.live

CONNECT = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.recv(1)
"""


def identity_of(path: Path, *prefix: str) -> tuple[PeerIdentity, int]:
    """Return the identity of a process that connects, and its number as its parent knows it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(60)
        with subprocess.Popen([*prefix, sys.executable, "-c", CONNECT, str(path)]) as process:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                process.kill()
                raise
            with connection:
                peer = identify(connection)
            process.wait(60)
    assert has_ended(peer.pidfd)
    close_identity(peer)
    return peer, process.pid


def test_identity_comes_from_the_kernel(tmp_path: Path) -> None:
    peer, pid = identity_of(tmp_path / "s")
    assert (peer.pid, peer.uid, peer.gid, peer.is_foreign) == (pid, os.geteuid(), os.getegid(), False)
    assert set(peer.groups) == set(os.getgroups())
    assert peer.cgroup.startswith("/")


NAMESPACES = {
    "user": ["--user", "--map-root-user"],
    "pid": ["--pid", "--fork"],
    "user and pid": ["--user", "--map-root-user", "--pid", "--fork"],
}


@pytest.mark.parametrize("name", NAMESPACES)
def test_process_in_another_namespace_is_foreign_and_no_operator(tmp_path: Path, name: str) -> None:
    prefix = ["unshare", *NAMESPACES[name]]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    peer, _ = identity_of(tmp_path / "s", *prefix)
    assert peer.is_foreign
    assert peer.uid == os.geteuid(), "the user of the node, and yet no operator"
    assert not Access(decode_config("", "x").operators, (), os.geteuid()).is_operator(peer)


def access_of(text: str) -> Access:
    config = decode_config(text, "here.toml")
    validate(config)
    return Access(config.operators, config.limits, 0)


@pytest.mark.parametrize(
    "text, field, remedy",
    [
        ("[operators]\nusers = ['']\n", "operators.users", "name one user"),
        ("[operators]\ngroups = ['*']\n", "operators.groups", "name one user or group"),
        ("[[limits]]\nkinds = ['offline']\n", "limits[0].user", "either a user or a group"),
        ("[[limits]]\nuser = 'a'\ngroup = 'b'\n", "limits[0].user", "either a user or a group"),
        ("[[limits]]\nuser = 'root'\nkinds = []\n", "limits[0].kinds", "at least one kind"),
        ("[[limits]]\nuser = 'no such user'\n", "limits[0].user", "there is no such user"),
        ("[[limits]]\ngroup = 'no such group'\n", "limits[0].group", "there is no such group"),
        ("[[limits]]\nuser = 'root'\npriority = 10\n", "limits[0].priority", "<= 9"),
        ("[[limits]]\nuser = 'root'\nmemory = 5\n", "limits[0].memory", "GiB"),
        ("[[limits]]\nuser = 'root'\ncolour = 5\n", "limits[0].colour", "no such field"),
        ("[operators]\nusers = 'root'\n", "operators.users", "list"),
    ],
)
def test_wrong_access_config_names_field_and_remedy(text: str, field: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as raised:
        access_of(text)
    assert raised.value.field == field
    assert remedy in str(raised.value)


def test_process_name_forges_no_line_of_its_status(tmp_path: Path) -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\rNSpid: 1 2 3', 0, 0, 0)" + CONNECT
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.settimeout(60)
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s")]) as process:
            connection, _ = listener.accept()
            status = Path(f"/proc/{process.pid}/status").read_bytes()
            connection.close()
            process.wait(60)
    assert status.startswith(b"Name:\t\rNSpid: 1 2 3\n"), "the kernel does not escape a carriage return"
    assert status_words(status, b"NSpid") == [str(process.pid).encode()]
    assert status_words(status.replace(b"NSpid", b"Uid"), b"Uid")[0] == str(os.getuid()).encode()


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x85", "\u2028"])
def test_name_of_a_cgroup_forges_no_line(end: str) -> None:
    forged = f"/made{end}0::/kubepods/pod{'1' * 32}"
    assert parse_cgroup(f"0::{forged}\n".encode()) == forged
    assert parse_cgroup(f"9:cpu:{forged}\n0::/user.slice\n".encode()) == "/user.slice"
