"""Who may change a software GPU or suspend its programs: its own user, and nobody in another user namespace."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.softgpu import fault, manage, wire

pytestmark = pytest.mark.live

CLIENT = """
import sys
from cotenant_lab.programs.client import CudaClient
client = CudaClient()
print("ready", flush=True)
sys.stdin.read()
"""
STRANGER = """
import ctypes, json, sys
from pathlib import Path
from cotenant.errors import CotenantError
from cotenant.softgpu import fault, wire
from cotenant_lab.programs.client import CudaClient
home, pid = Path(sys.argv[1]), int(sys.argv[2])
socket = home / "gpu0.sock"
client = CudaClient()
answers = {"lock": client.try_call("cuCheckpointProcessLock", pid, None)}
attempts = {
    "fault": lambda: fault.inject(home, 0, fault.KINDS["illegal-address"], client=pid),
    "loss": lambda: fault.inject(home, 0, fault.KINDS["device-lost"]),
    "clock": lambda: fault.set_clock(home, 0, 0.1),
    "slice": lambda: wire.time_slice(socket, 50_000_000),
    "mode": lambda: wire.compute_mode(socket, 2),
    "end": lambda: wire.shut_down(socket),
}
for name, attempt in attempts.items():
    try:
        attempt()
        answers[name] = True
    except CotenantError as error:
        answers[name] = False if "only the user" in str(error) else str(error)
wire.time_slice(socket)
client.launch(1000)
client.wait()
print(json.dumps(answers))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A software GPU that every user may use."""
    with tempfile.TemporaryDirectory(prefix="ct-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        made = Path(directory) / "gpus"
        manage.create(made, "a100", 1)
        made.chmod(0o755)
        manage.socket_of(made, 0).chmod(0o666)
        yield made
        manage.destroy(made)


def start(home: Path, code: str, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environ = {**os.environ, **manage.env(home)}
    command = [*before, sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


PREFIXES = {
    "another user": ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
    "root in a user namespace": ("unshare", "--user", "--map-root-user"),
    "root in a container": ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start programs as other users")
@pytest.mark.parametrize("who", PREFIXES)
def test_stranger_changes_nothing(home: Path, who: str) -> None:
    prefix = PREFIXES[who]
    if shutil.which(prefix[0]) is None or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip(f"{prefix[0]} is not permitted here")
    before = manage.inspect(home, 0)
    with start(home, CLIENT) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        stranger = start(home, STRANGER, str(home), str(program.pid), before=prefix)
        output, _ = stranger.communicate(timeout=120)
        answers = json.loads(output)
        expected = who == "root in a user namespace"  # the same user in the same pid namespace, as for ptrace
        assert answers == {**dict.fromkeys(answers, False), "lock": expected}
        assert len(answers) == 7
        after = manage.inspect(home, 0)
        assert wire.compute_mode(manage.socket_of(home, 0)) == 0
        assert (after["pid"], after["uuid"]) == (before["pid"], before["uuid"])
        program.kill()
        program.wait(60)


def test_own_user_may_change_a_device_and_suspend_programs(home: Path) -> None:
    slice_ns = wire.time_slice(manage.socket_of(home, 0))
    assert wire.time_slice(manage.socket_of(home, 0), 2 * slice_ns) == 2 * slice_ns
    with start(home, CLIENT) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert fault.inject(home, 0, fault.KINDS["illegal-address"], client=program.pid) == 1
        program.kill()
        program.wait(60)
    fault.set_clock(home, 0, 0.5)
