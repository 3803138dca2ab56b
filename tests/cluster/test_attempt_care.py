"""What keeps a cluster in order: certificates that are made anew, a job that is followed, and what the doctor says."""

from pathlib import Path

import msgspec
import pytest

from cotenant.cluster import wire
from cotenant.cluster.config import ClusterConfig
from cotenant.cluster.daemon import commands as cluster_ask
from cotenant.cluster.daemon.authority import open_authority
from cotenant.cluster.daemon.client import ControllerUnreachableError, Conversation, talk
from cotenant.cluster.daemon.doctor import examine_controller, examine_node
from cotenant.cluster.daemon.identity import Identity, read_identity
from cotenant.cluster.daemon.main import open_controller
from cotenant.cluster.model.cluster import JobState
from cotenant.cluster.wire import Role
from cotenant.node.daemon.log import NodeLog
from cotenant.node.directories import Directories
from cotenant.runner.clock import unix_ns
from tests.support.cluster_controllers import ControllerFixture, job, report

pytestmark = pytest.mark.live

VERSION = wire.VERSION


def test_controller_renews_its_certificate_before_expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = Directories(tmp_path / "run", tmp_path / "state")
    with (tmp_path / "log").open("wb") as file:
        controller = open_controller(
            ClusterConfig(listen="127.0.0.1:0"), directories, NodeLog("text", None, file.fileno())
        )
        credentials = next(timed for timed in controller.loop._timers if hasattr(timed, "context"))
        paths = [directories.state / "cluster" / name for name in ("controller.pem", "operator.pem")]
        before = [path.read_text() for path in paths]
        credentials.wake(0)
        assert [path.read_text() for path in paths] == before
        monkeypatch.setattr(Identity, "is_old", lambda own, now: True)
        credentials.wake(0)
        assert all(path.read_text() != text for path, text in zip(paths, before, strict=True))
        assert read_identity(paths[1]).controller == controller.address
        controller.close()


def test_follow_continues_while_the_controller_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    looks = iter([True, False, False, True])  # whether the controller is there

    def talk_if_there(identity: Identity) -> Conversation:
        return talk(identity if next(looks) else msgspec.structs.replace(identity, controller="127.0.0.1:1"))

    pauses = iter([True])

    def lose_once(seconds: float) -> None:
        if next(pauses, False):
            raise ControllerUnreachableError("it went away")

    with ControllerFixture() as controller:
        anna = controller.identity(Role.USER, "anna")
        cluster_ask.submit(anna, job("j1"))
        monkeypatch.setattr(cluster_ask, "talk", talk_if_there)
        monkeypatch.setattr(cluster_ask, "pause", lose_once)
        states: list[JobState] = []
        codes: list[int] = []
        for found in cluster_ask.follow(anna, "j1", said.append):
            states.append(found.state)
            with talk(controller.operator) as operator:
                operator.ask(wire.Cancel(VERSION, "j1"), wire.Success)
            codes.append(cluster_ask.exit_code_of(found))
    assert states == [JobState.WAITING, JobState.CANCELLED]
    assert said == ["it went away; waiting for it"]
    assert (codes, next(looks, None)) == ([1, 1], None)


def test_doctor_checks_controller_and_node_certificate(tmp_path: Path) -> None:
    directories = Directories(tmp_path / "run", tmp_path / "state")
    assert list(examine_controller(directories)) == list(examine_node(directories)) == []
    with ControllerFixture() as controller:
        with talk(controller.identity(Role.NODE, "n1")) as node:
            node.ask(wire.ReportNode(VERSION, 1, report("n1")), wire.GrantLease)
        (directories.state / "cluster").mkdir(parents=True)
        (directories.state / "cluster" / "operator.pem").write_text(controller.operator.path.read_text())
        assert list(examine_controller(directories)) == [(True, "the cluster's controller answers; 1 node", "")]
        controller.clock.advance(10**12)
        controller.honest()
        assert [good for good, _, _ in examine_controller(directories)] == [True, False]
    assert [good for good, what, _ in examine_controller(directories) if "is away" in what] == [False]
    authority = open_authority(tmp_path, unix_ns())
    path = directories.state / "agent" / "identity.pem"
    authority.identity(Role.NODE, "n1", "127.0.0.1:1", path, 1.0, unix_ns())
    assert [good for good, _, _ in examine_node(directories)] == [True]
    authority.identity(Role.NODE, "n1", "127.0.0.1:1", path, -0.01, unix_ns())
    [(is_good, what, remedy)] = examine_node(directories)
    assert (is_good, "has expired" in what, "cluster token --node n1" in remedy) == (False, True, True)
    path.write_text("nothing")
    assert [good for good, _, _ in examine_node(directories)] == [False]
