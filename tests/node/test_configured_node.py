"""`cotenant run` never starts a node in the place of one that an operator configured or started."""

from pathlib import Path

import pytest

from cotenant.node.client.configured import UNIT, is_operators_node, operator_remedy
from cotenant.node.directories import Directories
from cotenant.node.model.event import NodeSettings
from tests.support.node_processes import NodeHarness, until


class Machine:
    """The files of a machine below a directory."""

    def __init__(self, root: Path) -> None:
        self.system = Directories(root / "run", root / "lib")
        self.config = root / "config.toml"
        self.units, self.user_units, self.home = root / "units", root / "user-units", root / "home"
        for directory in (self.units, self.user_units, self.home / ".config" / "systemd" / "user"):
            directory.mkdir(parents=True)

    def remedy(self, directories: Directories, uid: int, **environ: str) -> str:
        return operator_remedy(
            directories,
            {"HOME": str(self.home), **environ},
            uid,
            system=self.system,
            system_config=self.config,
            system_units=[self.units],
            user_units=[self.user_units],
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


OWN = Directories(Path("/run/user/1000/cotenant"), Path("/home/u/.local/state/cotenant"))
XDG = "/run/user/1000"


def test_node_may_be_started_on_a_machine_without_configuration(machine: Machine) -> None:
    assert machine.remedy(machine.system, 0) == ""
    assert machine.remedy(OWN, 1000, XDG_RUNTIME_DIR=XDG) == ""


@pytest.mark.parametrize("what", ["unit", "config"])
def test_configured_machine_node_is_not_replaced(machine: Machine, what: str) -> None:
    (machine.config if what == "config" else machine.units / UNIT).touch()
    as_root = machine.remedy(machine.system, 0)
    assert "is not running; run: " in as_root
    assert ("systemctl start" in as_root) is (what == "unit")
    as_user = machine.remedy(OWN, 1000, XDG_RUNTIME_DIR=XDG)
    assert "ask its operator" in as_user
    assert "--runtime-dir" in as_user


def test_directories_that_the_user_named_are_the_users_own(machine: Machine) -> None:
    machine.config.touch()
    (machine.units / UNIT).touch()
    named = Directories(Path("/x/run"), Path("/x/state"))
    assert machine.remedy(named, 1000, XDG_RUNTIME_DIR=XDG) == ""
    assert machine.remedy(named, 0) == ""
    assert machine.remedy(machine.system, 0, COTENANT_DIRECTORY="/x") == ""


def test_unit_of_the_user_is_started_by_its_manager(machine: Machine) -> None:
    (machine.home / ".config" / "systemd" / "user" / UNIT).touch()
    assert "systemctl --user start" in machine.remedy(OWN, 1000, XDG_RUNTIME_DIR=XDG)
    assert machine.remedy(machine.system, 0) == ""


def test_node_with_another_idle_time_is_an_operators() -> None:
    assert not is_operators_node(None, 5)
    assert not is_operators_node(NodeSettings(1, 1, 5), 5)
    assert is_operators_node(NodeSettings(1, 1, 0), 5)


@pytest.mark.live
def test_dead_node_of_an_operator_is_not_replaced(node_harness: NodeHarness) -> None:
    node_harness.node("--slots", "7")
    node_harness.kill_node()
    done = node_harness.run("run", "--", "true")
    assert done.returncode == 75
    assert "does not replace a node that it did not start; start it again with `cotenant node`" in done.stderr
    assert node_harness.node_pid() is None
    node_harness.node("--slots", "7")
    assert node_harness.run("run", "--", "true").returncode == 0


@pytest.mark.live
def test_dead_node_of_run_is_started_again(node_harness: NodeHarness) -> None:
    assert node_harness.run("run", "--", "true").returncode == 0
    node_harness.kill_node()
    assert node_harness.run("run", "--", "true").returncode == 0
    until(lambda: node_harness.node_pid() is not None)
