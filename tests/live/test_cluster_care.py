"""What keeps a cluster in order: certificates that are made anew, a job that is followed, and what the doctor says."""

from pathlib import Path

import msgspec
import pytest

from cotenant.apps import cluster_ask
from cotenant.apps.cluster import open_brain
from cotenant.domain.cluster import JobState
from cotenant.format import cluster_wire as wire
from cotenant.format.cluster_wire import Role
from cotenant.format.config_cluster import ClusterConfig
from cotenant.live.clock import unix_ns
from cotenant.live.cluster.ask import BrainAwayError, Conversation, talk
from cotenant.live.cluster.authority import open_authority
from cotenant.live.cluster.doctor import examine_brain, examine_node
from cotenant.live.cluster.identity import Identity, read_identity
from cotenant.live.directory import Places
from cotenant.live.observe.log import NodeLog
from tests.live.brains import Brains, job, report

VERSION = wire.VERSION


def test_a_brain_makes_its_certificate_anew_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(tmp_path / "run", tmp_path / "state")
    with (tmp_path / "log").open("wb") as file:
        brain = open_brain(ClusterConfig(listen="127.0.0.1:0"), places, NodeLog("text", None, file.fileno()))
        credentials = next(timed for timed in brain.loop._timed if hasattr(timed, "context"))
        paths = [places.state / "cluster" / name for name in ("brain.pem", "operator.pem")]
        before = [path.read_text() for path in paths]
        credentials.wake(0)
        assert [path.read_text() for path in paths] == before
        monkeypatch.setattr(Identity, "is_old", lambda own, now: True)
        credentials.wake(0)
        assert all(path.read_text() != text for path, text in zip(paths, before, strict=True))
        assert read_identity(paths[1]).brain == brain.address
        brain.close()


def test_a_job_is_followed_until_it_is_over_also_while_the_brain_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    looks = iter([True, False, False, True])  # whether the brain is there

    def talk_if_there(identity: Identity) -> Conversation:
        return talk(identity if next(looks) else msgspec.structs.replace(identity, brain="127.0.0.1:1"))

    pauses = iter([True])

    def lose_once(seconds: float) -> None:
        if next(pauses, False):
            raise BrainAwayError("it went away")

    with Brains() as brain:
        anna = brain.identity(Role.USER, "anna")
        cluster_ask.submit(anna, job("j1"))
        monkeypatch.setattr(cluster_ask, "talk", talk_if_there)
        monkeypatch.setattr(cluster_ask, "pause", lose_once)
        states: list[JobState] = []
        codes: list[int] = []
        for found in cluster_ask.follow(anna, "j1", said.append):
            states.append(found.state)
            with talk(brain.operator) as operator:
                operator.ask(wire.Cancel(VERSION, "j1"), wire.Done)
            codes.append(cluster_ask.exit_code_of(found))
    assert states == [JobState.WAITING, JobState.CANCELLED]
    assert said == ["it went away; waiting for it"]
    assert (codes, next(looks, None)) == ([1, 1], None)


def test_the_doctor_looks_at_the_brain_and_at_the_nodes_certificate(tmp_path: Path) -> None:
    places = Places(tmp_path / "run", tmp_path / "state")
    assert list(examine_brain(places)) == list(examine_node(places)) == []
    with Brains() as brain:
        with talk(brain.identity(Role.NODE, "n1")) as node:
            node.ask(wire.Told(VERSION, 1, report("n1")), wire.Heard)
        (places.state / "cluster").mkdir(parents=True)
        (places.state / "cluster" / "operator.pem").write_text(brain.operator.path.read_text())
        assert list(examine_brain(places)) == [(True, "the cluster's brain answers; 1 node", "")]
        brain.clock.advance(10**12)
        brain.honest()
        assert [good for good, _, _ in examine_brain(places)] == [True, False]
    assert [good for good, what, _ in examine_brain(places) if "is away" in what] == [False]
    authority = open_authority(tmp_path, unix_ns())
    path = places.state / "agent" / "identity.pem"
    authority.identity(Role.NODE, "n1", "127.0.0.1:1", path, 1.0, unix_ns())
    assert [good for good, _, _ in examine_node(places)] == [True]
    authority.identity(Role.NODE, "n1", "127.0.0.1:1", path, -0.01, unix_ns())
    [(is_good, what, remedy)] = examine_node(places)
    assert (is_good, "has expired" in what, "cluster token --node n1" in remedy) == (False, True, True)
    path.write_text("nothing")
    assert [good for good, _, _ in examine_node(places)] == [False]
