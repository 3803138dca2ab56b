"""A program in other namespaces joins through the one socket that it sees, and is no operator there, root included."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cotenant.hook.shim import environment, make_shim
from cotenant.softgpu import manage
from tests.support.node_processes import BOUND_S, COTENANT, until
from tests.support.shared_machine import ALICE, BOB, ROOT, SharedMachine, User
from tests.support.started_programs import STARTS

pytestmark = [pytest.mark.live, pytest.mark.attack]

HELD_BYTES = 12 << 20
CONTAINER = """
set -e
mount -t tmpfs none {inside}
for name in {sockets}; do
    touch {inside}/$name
    mount --bind /run/cotenant/$name {inside}/$name
done
mount --bind {files} {files}
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mount -o remount,bind,ro /
cd {files}
exec {command}
"""


class Isolation(NamedTuple):
    """A kind of container: the user that starts it, how its namespaces are made, and the user of the program in it."""

    starter: User
    unshare: str
    switch: str = ""
    """The command in front of the program that gives up root."""
    uid: int = 0
    """The program's user as the node must see it."""
    uid_inside: int = 0


PID_AND_MOUNT = "unshare --pid --mount --fork --kill-child --mount-proc --propagation private"
NON_ROOT = f"setpriv --reuid {BOB.uid} --regid {BOB.uid} --clear-groups --no-new-privs"
ISOLATIONS = {
    "root": Isolation(ROOT, PID_AND_MOUNT),
    "user-of-root": Isolation(ROOT, PID_AND_MOUNT, NON_ROOT, BOB.uid, BOB.uid),
    "root-of-a-user-namespace": Isolation(ALICE, f"{PID_AND_MOUNT} --user --map-root-user", uid=ALICE.uid),
    "root-of-roots-user-namespace": Isolation(ROOT, f"{PID_AND_MOUNT} --user --map-root-user"),
}


class Container:
    """Runs programs that see no file of the node except the sockets that are mounted for them."""

    def __init__(self, machine: SharedMachine, isolation: Isolation) -> None:
        self.machine = machine
        self.isolation = isolation
        self.files = machine.home / "container"
        self.inside = machine.home / "inside"
        for directory in (self.files, self.inside):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o777)
        probe = self.start(["true"], sockets=())
        _, err = probe.communicate(timeout=BOUND_S)
        if probe.returncode:
            pytest.skip(f"these namespaces are not permitted here: {err.strip()}")

    def start(self, command: list[str], *, sockets: tuple[str, ...] = ("tenant.sock",), **variables: str) -> Any:
        """Start a program with these sockets of the node, in a read-only file system."""
        program = f"{self.isolation.switch} {shlex.join(command)}"
        words = {"inside": self.inside, "files": self.files, "sockets": " ".join(sockets) or "''", "command": program}
        if not sockets:
            words["sockets"] = ""
        script = CONTAINER.format(**words)
        environ = self.machine.environ_of(self.isolation.starter, **manage.env(self.machine.gpu, base={}), **variables)
        unshare = shlex.split(self.isolation.unshare)
        return self.machine.open_as(self.isolation.starter, [*unshare, "sh", "-c", script], environ=environ)

    def start_tenant(self) -> Any:
        """Start a program that joins by itself and holds device memory."""
        shim = self.machine.home / "shim"
        if not shim.exists():
            make_shim(shim, manage.library(), manage.library(manage.NVML))
            shim.chmod(0o755)
        base = manage.env(self.machine.gpu, base={})
        joining = {
            **environment("shim", shim, base),
            "COTENANT_SOCKET": str(self.inside / "tenant.sock"),
            "COTENANT_KIND": "offline",
            "COTENANT_REQUIRED": "1",
        }
        words = [f"{name}={value}" for name, value in joining.items()]
        return self.start(["env", *words, *STARTS, "hold", str(self.files), str(HELD_BYTES >> 20)])

    def announced(self) -> list[int]:
        """Return the processes that hold memory, by their numbers inside."""
        return [int(path.name.removeprefix("held-")) for path in self.files.glob("held-*")]


@pytest.fixture
def machine() -> Iterator[SharedMachine]:
    with SharedMachine() as made:
        made.start_node()
        yield made


def status_of(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def tenants(machine: SharedMachine) -> list[dict[str, Any]]:
    """Return the tenants that root's `ps` lists."""
    done = machine.run_as(ROOT, "ps", "--json")
    assert done.returncode == 0, done.stderr
    listed: list[dict[str, Any]] = json.loads(done.stdout)["tenants"]
    return listed


def is_released(machine: SharedMachine) -> bool:
    counters = manage.inspect(machine.gpu, 0)
    return not machine.names() and counters["memory_bytes"] == counters["memory_free_bytes"]


@pytest.mark.parametrize("name", ISOLATIONS)
def test_program_in_other_namespaces_joins_and_leaves(name: str, machine: SharedMachine) -> None:
    isolation = ISOLATIONS[name]
    container = Container(machine, isolation)
    program = container.start_tenant()
    until(lambda: program.poll() is not None or container.announced())
    assert program.poll() is None, program.communicate()
    [tenant] = tenants(machine)
    status = status_of(tenant["pid"])
    assert status["NSpid"][-1] == str(container.announced()[0])  # this process, by the node's number of it
    assert len(status["NSpid"]) > 1
    assert int(status["Uid"][0]) == isolation.uid
    assert (tenant["uid"], tenant["held_bytes"], tenant["kind"]) == (isolation.uid, HELD_BYTES, "offline")
    (container.files / "go").touch()
    _, err = program.communicate(timeout=BOUND_S)
    assert (program.returncode, err) == (0, "")
    until(lambda: is_released(machine))


@pytest.mark.parametrize("name", ISOLATIONS)
def test_killed_program_in_other_namespaces_leaves(name: str, machine: SharedMachine) -> None:
    container = Container(machine, ISOLATIONS[name])
    program = container.start_tenant()
    until(lambda: program.poll() is not None or container.announced())
    assert program.poll() is None, program.communicate()
    os.kill(tenants(machine)[0]["pid"], 9)
    program.wait(BOUND_S)
    until(lambda: is_released(machine))


def rules_and_tenants(machine: SharedMachine) -> tuple[Any, ...]:
    """Return everything that an operator could change, as root sees it."""
    tenant_list = machine.tenant_list()
    assert tenant_list is not None
    return (tenant_list.rules, *((view.tenant, view.connected) for view in tenant_list.tenants))


OPERATIONS = ("pause victim", "evict victim --grace 0s", "set victim --priority 9", "set --bound 20ms")


@pytest.mark.parametrize("sockets", [("tenant.sock",), ("tenant.sock", "operator.sock")], ids=["one", "both"])
@pytest.mark.parametrize("name", ISOLATIONS)
def test_root_in_other_namespaces_is_no_operator(name: str, sockets: tuple[str, ...], machine: SharedMachine) -> None:
    """The operator's socket does not belong into a container; even there it serves no process of other namespaces."""
    machine.start_tenant(ALICE, "victim")
    machine.start_tenant(BOB, "bystander")
    before = rules_and_tenants(machine)
    container = Container(machine, ISOLATIONS[name])
    for operation in OPERATIONS:
        words = [*COTENANT, *operation.split(), "--runtime-dir", str(container.inside)]
        refused = container.start(words, sockets=sockets)
        out, err = refused.communicate(timeout=BOUND_S)
        assert refused.returncode in (2, 69, 75), f"{operation}: {out}{err}"
        assert err.startswith("cotenant: "), err
    assert rules_and_tenants(machine) == before
