"""However a program is started, its processes are one tenant, and their memory is accounted for and released."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cotenant.hook.shim import environment, make_shim
from cotenant.softgpu import manage
from tests.support.node_processes import BOUND_S, COTENANT, NodeHarness, until
from tests.support.software_gpus import PROGRAMS
from tests.support.started_programs import WAYS, command_of

pytestmark = [pytest.mark.live, pytest.mark.attack]

MEBIBYTE = 1 << 20


class GpuMachine:
    """A node with one software GPU, and the environment with which programs find both."""

    def __init__(self, node_harness: NodeHarness) -> None:
        self.node_harness = node_harness
        self.gpu = node_harness.home / "gpu"
        manage.create(self.gpu, "v100", 1)
        self.program_environ = {**node_harness.environ, **manage.env(self.gpu, base=node_harness.environ)}
        node_harness.node(env=self.program_environ)
        self.shim = node_harness.home / "shim"
        make_shim(self.shim, manage.library(), manage.library(manage.NVML))
        self.vforks = node_harness.home / "vforks"
        if shutil.which("gcc") is not None:
            subprocess.run(
                ["gcc", "-std=gnu11", "-Wall", str(PROGRAMS / "vforks.c"), "-o", str(self.vforks)], check=True
            )

    def self_joining(self) -> dict[str, str]:
        """Return the environment of a program that joins the node by itself."""
        clean = {name: value for name, value in self.program_environ.items() if not name.startswith("COTENANT_")}
        joining = {
            "COTENANT_SOFTGPU": str(self.gpu),
            "COTENANT_SOCKET": str(self.node_harness.directories.runtime / "tenant.sock"),
            "COTENANT_KIND": "offline",
            "COTENANT_REQUIRED": "1",
        }
        return {**clean, **joining, **environment("shim", self.shim, clean)}

    def tenants(self) -> list[dict[str, Any]]:
        """Return the tenants that `ps` lists."""
        listed: list[dict[str, Any]] = self.node_harness.json("ps")["tenants"]
        return listed

    def held_bytes(self) -> int:
        """Return the memory that the device has given out."""
        counters = manage.inspect(self.gpu, 0)
        return int(counters["memory_bytes"]) - int(counters["memory_free_bytes"])

    def is_released(self) -> bool:
        """Return whether no tenant is left, and the device has no client and all of its memory."""
        return not self.node_harness.names() and not self.held_bytes() and not manage.inspect(self.gpu, 0)["clients"]


@pytest.fixture(scope="module")
def machine() -> Iterator[GpuMachine]:
    with NodeHarness() as node_harness:
        made = GpuMachine(node_harness)
        yield made
        manage.destroy(made.gpu)


def holders(directory: Path) -> dict[int, int]:
    """Return the memory in MiB of the processes that have announced themselves."""
    return {int(path.name.removeprefix("held-")): int(path.read_text()) for path in directory.glob("held-*")}


def check_way(name: str, machine: GpuMachine, command: list[str], environ: Mapping[str, str], directory: Path) -> str:
    """Start a program, compare what its processes hold with node and device, let it end; return its standard error."""
    way = WAYS[name]
    until(machine.is_released)
    program = machine.node_harness.open(command, env=environ, start_new_session=True)
    until(lambda: program.poll() is not None or len(holders(directory)) == len(way.held))
    assert program.poll() is None, program.communicate()
    assert sorted(holders(directory).values()) == sorted(way.held)
    total_bytes = sum(way.held) * MEBIBYTE
    assert machine.held_bytes() == total_bytes
    tenants = machine.tenants()
    is_run = command[:3] == COTENANT
    assert len(tenants) == (way.tenants if is_run else 1), tenants
    assert sum(tenant["held_bytes"] or 0 for tenant in tenants) == total_bytes
    (directory / "seen").touch()
    if way.outlives_run and not is_run:  # the tenant remains with the process that the first one has left behind
        program.wait(BOUND_S)
        assert len(machine.tenants()) == 1
        assert machine.held_bytes() == total_bytes
    if not (way.outlives_run and is_run):
        (directory / "go").touch()
    _, err = program.communicate(timeout=BOUND_S)
    assert program.returncode == 0, err
    until(machine.is_released)
    return err


@pytest.fixture
def program_directory(machine: GpuMachine, request: pytest.FixtureRequest) -> Path:
    """A directory for the files of one program."""
    directory = machine.node_harness.home / f"files-{os.urandom(4).hex()}"
    directory.mkdir()
    return directory


def skip_impossible(name: str, machine: GpuMachine) -> None:
    if name == "other-root" and os.geteuid() != 0:
        pytest.skip("only root can change its root directory")
    if name == "vfork" and not machine.vforks.exists():
        pytest.skip("no C compiler")


@pytest.mark.parametrize("name", WAYS)
def test_processes_under_run_are_one_tenant(name: str, machine: GpuMachine, program_directory: Path) -> None:
    skip_impossible(name, machine)
    program = command_of(name, program_directory, machine.vforks, machine.node_harness.environ)
    command = [*COTENANT, "run", "--start-node", "no", "--name", name, "--", *program]
    check_way(name, machine, command, machine.program_environ, program_directory)
    assert machine.node_harness.endings()[name] == "exit 0"


@pytest.mark.parametrize("name", WAYS)
def test_processes_that_join_by_themselves_are_one_tenant(
    name: str, machine: GpuMachine, program_directory: Path
) -> None:
    skip_impossible(name, machine)
    before = len(machine.node_harness.json("ps", "--all")["departed"])
    program = command_of(name, program_directory, machine.vforks, machine.node_harness.environ)
    err = check_way(name, machine, program, machine.self_joining(), program_directory)
    assert "cotenant" not in err  # nothing ran unmanaged
    assert len(machine.node_harness.json("ps", "--all")["departed"]) == before + 1
