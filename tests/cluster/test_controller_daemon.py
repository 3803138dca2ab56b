"""Tests of the cluster controller as a process."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cotenant import cli
from cotenant.cluster import wire
from cotenant.cluster.config import ClusterConfig
from cotenant.cluster.daemon import main as cluster
from cotenant.cluster.daemon.client import Conversation, talk
from cotenant.cluster.daemon.enrol import enrol
from cotenant.cluster.daemon.identity import Identity, read_identity
from cotenant.cluster.daemon.main import ControllerHandle, open_controller
from cotenant.cluster.daemon.metrics import ControllerMetrics, page_of
from cotenant.cluster.model.cluster import Attempt, AttemptReport, JobEnd
from cotenant.cluster.model.event import JobSubmitted, StartJob, StopJob
from cotenant.errors import ConfigError, InvariantError, WorldError
from cotenant.node.daemon.log import NodeLog
from cotenant.node.directories import Directories
from cotenant.runner.clock import LiveClock, pause
from cotenant.runner.journal import MAGIC, encode_turn
from tests.support.cluster_controllers import job, report
from tests.support.tools import BIN, ROOT

pytestmark = pytest.mark.live

VERSION = wire.VERSION
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COTENANT_DIRECTORY", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out.strip(), said.err.strip()

    return command


class Daemon:
    """A controller in a process of its own."""

    def __init__(self, *flags: str) -> None:
        command = [str(BIN / "cotenant"), "cluster", "start", "--listen", "127.0.0.1:0", "--round", "100ms", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.first_line = self.process.stderr.readline()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return self.process.wait(60)


@pytest.fixture
def daemon() -> Iterator[Callable[..., Daemon]]:
    started: list[Daemon] = []

    def start(*flags: str) -> Daemon:
        started.append(Daemon(*flags))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


def order_for(node: Conversation, name: str) -> StartJob:
    """Report until the controller wants something started."""
    while True:
        answer = node.ask(wire.ReportNode(VERSION, 1, report(name)), wire.Message)  # whichever comes
        if isinstance(answer, wire.NodeOrder):
            assert isinstance(answer.action, StartJob)
            return answer.action
        pause(0.05)


def test_killed_controller_recovers_its_state(
    home: Path, run: Run, daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    first = daemon()
    assert "the controller serves at 127.0.0.1:" in first.first_line
    code, token, _ = run("cluster", "token", "--uses", "2")
    assert code == 0
    operator = read_identity(home / "state" / "cluster" / "operator.pem")
    node = enrol(operator.controller, token, "n1", tmp_path / "n1.pem", lambda _: None)
    assert run("submit", "--name", "j1", "--", "train", "--fast")[:2] == (0, "j1")
    assert run("submit", "--name", "j2", "--gpus", "8", "--", "train")[:2] == (0, "j2")
    with talk(node) as link:
        order = order_for(link, "n1")
    assert (order.attempt.job, order.spec.command) == ("j1", ("train", "--fast"))
    assert first.end(signal.SIGKILL) == -signal.SIGKILL

    code, _, error = run("jobs")
    assert (code, error.count("\n")) == (75, 0)
    assert "no controller answers at" in error
    daemon()
    operator = read_identity(home / "state" / "cluster" / "operator.pem")
    node = moved(node, operator.controller)
    code, reported, _ = run("jobs", "--json")
    jobs = {reported["name"]: reported for reported in json.loads(reported)["jobs"]}
    assert {name: reported["state"] for name, reported in jobs.items()} == {"j1": "starting", "j2": "waiting"}
    assert (jobs["j1"]["attempt"], jobs["j1"]["node"], jobs["j1"]["on_gpus"]) == (order.attempt.number, "n1", [0])
    done = AttemptReport(order.attempt, order.gpus, 1_000_000, end=JobEnd.DONE)
    with talk(node) as link:
        reported_end = msgspec.structs.replace(report("n1"), attempts=(done,), highest_attempt=order.attempt.number)
        link.ask(
            wire.ReportNode(VERSION, 1, reported_end), wire.NodeOrder
        )  # the end is acknowledged, nothing is started again
    assert run("submit", "--name", "j1", "--wait", "--", "other")[0] == 2  # its name is remembered
    code, reported, _ = run("jobs", "j1", "--json")
    assert [reported["state"] for reported in json.loads(reported)["jobs"]] == ["done"]
    assert enrol(operator.controller, token, "n2", tmp_path / "n2.pem", lambda _: None).name == "n2"  # so is the token


def moved(identity: Identity, controller: str) -> Identity:
    return msgspec.structs.replace(identity, controller=controller)


def test_output_of_the_cluster_commands(home: Path, run: Run, daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    code, _, error = run("jobs")
    assert (code, error.count("\n")) == (75, 0)
    assert "no controller was ever started in" in error
    controller = daemon("--metrics", "127.0.0.1:0")
    assert "figures for Prometheus: http://127.0.0.1:" in controller.first_line
    assert run("submit", "--gpus", "2", "--memory", "4GiB", "--type", "V100", "--name", "j1", "--", "train")[0] == 0
    code, table, _ = run("jobs")
    assert code == 0
    assert "waiting" in table
    assert "1 job: 1 waiting" in table
    anna = str(tmp_path / "anna.pem")
    assert run("cluster", "user", "anna", "--output", anna)[0] == 0
    assert run("cluster", "user", "anna", "--output", anna)[0] == 2
    assert run("submit", "--identity", anna, "--name", "a1", "--", "train")[0] == 0
    code, _, error = run("cancel", "--identity", anna, "j1")
    assert (code, error) == (
        75,
        "cotenant: the controller refused: job 'j1' is another user's, who alone may cancel it (or an operator)",
    )
    assert run("cancel", "--identity", anna, "a1")[0] == 0
    assert run("cancel", "j1", "--json")[:2] == (0, '{"cancelled":["j1"]}')
    assert run("cluster", "quota", "anna", "--gpus", "3", "--weight", "2")[0] == 0
    assert run("cluster", "revoke", "--role", "user", "anna")[0] == 0
    code, _, error = run("jobs", "--identity", anna)
    assert code == 76
    assert "the certificate of user anna was revoked" in error
    assert json.loads(run("cluster", "nodes", "--json")[1])["nodes"] == []
    assert controller.end(signal.SIGTERM) == 0


BAD = {
    ("submit", "--type", "../x", "--", "true"): "--type = '../x': write 1 to 128 letters",
    ("submit", "--gpus", "1"): "COMMAND = '': name the program to run",
    ("submit", "--gpus", "65", "--", "x"): "--gpus = 65: expected `int` <= 64",
    ("submit", "--gpus", "two", "--", "x"): "--gpus = 'two': write a whole number",
    ("submit", "--memory", "4", "--", "x"): "--memory = '4': write a number and a unit",
    ("submit", "--name", "a b", "--", "x"): "--name = 'a b': write 1 to 128 letters",
    ("submit", "--env", "NO_SUCH", "--", "x"): "--env = 'NO_SUCH': is not set here",
    ("submit", "--type", "a b", "--", "x"): "--type = ",
    ("submit", "--", "\udcff"): "COMMAND = ",
    ("jobs", "nobody"): "JOB = 'nobody': the cluster remembers no such job",
    ("cancel", "nobody"): "JOB = 'nobody': no job is called 'nobody'",
    ("cluster", "drain", "n9"): "NODE = 'n9': no node is called 'n9'",
    ("cluster", "token", "--uses", "0"): "--uses = 0: write 1 to 100,000 uses",
    ("cluster", "token", "--valid", "soon"): "--valid = 'soon'",
    ("cluster", "quota", "anna", "--weight", "0"): "quota = 'anna'",
    ("cluster", "start", "--place", "luck"): "cluster.place = 'luck': write one of: ",
    ("cluster", "start", "--place", "time-sharing"): "cluster.place = 'time-sharing': is of simulations only",
    ("cluster", "start", "--place", "priority-time-sharing"): "cluster.place = 'priority-time-sharing': is of sim",
    ("cluster", "start", "--lease", "1ms"): "cluster.lease = '1ms': must be at least 1s",
    ("cluster", "start", "--listen", "nowhere"): "cluster.listen = 'nowhere': write HOST:PORT",
}


def test_bad_input_is_rejected_in_one_sentence(home: Path, run: Run, daemon: Callable[..., Daemon]) -> None:
    daemon()
    for words, sentence in BAD.items():
        code, printed, error = run(*words)
        assert (code, printed, error.count("\n")) == (2, "", 0), (words, code, error)
        assert error.startswith(f"cotenant: {sentence}"), error


# -- the journal -----------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[NodeLog]:
    descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    yield NodeLog("text", None, descriptor)
    os.close(descriptor)


def submitted(name: str, peer: int = 0) -> JobSubmitted:
    return JobSubmitted(job(name), peer)


CONFIG = ClusterConfig(listen="127.0.0.1:0")


def places_in(folder: Path) -> Directories:
    return Directories(folder / "run", folder / "state")


def journal_of(folder: Path) -> Path:
    return folder / "state" / "cluster" / "journal"


def test_graceful_stop_leaves_one_snapshot(tmp_path: Path, log: NodeLog) -> None:
    controller = open_controller(CONFIG, places_in(tmp_path), log)
    controller.loop.post(submitted("j1"))
    before = controller.machine.snapshot()
    with pytest.raises(WorldError, match=r"a controller already runs on"):
        open_controller(CONFIG, places_in(tmp_path), log)
    controller.settle()
    controller.close()
    assert b"cluster-restored" in journal_of(tmp_path).read_bytes()
    assert b"job-submitted" not in journal_of(tmp_path).read_bytes()
    again = open_controller(CONFIG, places_in(tmp_path), log)
    assert again.machine.snapshot().jobs == before.jobs
    again.close()


def test_restart_after_a_failed_turn_recovers_from_the_journal(
    tmp_path: Path, log: NodeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(
        config: ClusterConfig, directories: Directories, log: NodeLog, *, accept_damage: bool
    ) -> ControllerHandle:
        controller = open_controller(config, directories, log, accept_damage=accept_damage)
        controller.loop.post(submitted("j1"))

        def run() -> str:
            controller.machine.job_table.jobs.clear()  # as far as it came
            raise InvariantError("in the midst of a turn")

        monkeypatch.setattr(controller.loop, "run", run)
        return controller

    monkeypatch.setattr(cluster, "open_controller", broken)
    monkeypatch.setattr(cluster, "name_process", lambda _: None)
    monkeypatch.setattr(cluster, "stop_on_signals", lambda *_: None)
    with pytest.raises(InvariantError, match="midst"):
        cluster.serve_cluster(CONFIG, places_in(tmp_path), log, accept_damage=False)
    again = open_controller(CONFIG, places_in(tmp_path), log)
    assert [reported.spec.name for reported in again.machine.jobs()] == ["j1"]
    again.close()


def test_torn_last_turn_is_dropped_and_damage_is_rejected(tmp_path: Path, log: NodeLog) -> None:
    controller = open_controller(CONFIG, places_in(tmp_path), log)
    controller.loop.post(submitted("j1"))
    controller.loop.post(submitted("j2"))
    sound = journal_of(tmp_path).read_bytes()
    attempt = controller.machine.snapshot().next_attempt
    controller.close()
    journal_of(tmp_path).write_bytes(sound + b"\x05\x00")
    mended = open_controller(CONFIG, places_in(tmp_path), log)
    assert [reported.spec.name for reported in mended.machine.jobs()] == ["j1", "j2"]
    mended.close()
    place = sound.rindex(b"j1")
    journal_of(tmp_path).write_bytes(sound[:place] + b"??" + sound[place + 2 :])
    with pytest.raises(WorldError, match=r"damaged at byte \d+.*--accept-damage"):
        open_controller(CONFIG, places_in(tmp_path), log)
    accepted = open_controller(CONFIG, places_in(tmp_path), log, accept_damage=True)
    assert list(accepted.machine.jobs()) == []
    assert accepted.machine.snapshot().next_attempt > attempt + 1000  # numbers that were forgotten are not used again
    accepted.close()


def test_no_job_that_may_still_run_is_started_after_damage(tmp_path: Path, log: NodeLog) -> None:
    controller = open_controller(CONFIG, places_in(tmp_path), log)
    for name in ("j1", "j2", "j3"):
        controller.loop.post(submitted(name))
    sound = journal_of(tmp_path).read_bytes()
    controller.close()
    place = sound.rindex(b"j2")
    journal_of(tmp_path).write_bytes(sound[:place] + b"??" + sound[place + 2 :])
    accepted = open_controller(CONFIG, places_in(tmp_path), log, accept_damage=True)
    assert [reported.spec.name for reported in accepted.machine.jobs()] == ["j1"]
    began = LiveClock(int(json.loads((tmp_path / "state" / "cluster" / "clock").read_text())["offset_ns"])).now()
    accepted.loop.post(report("n1"))
    held_until = accepted.machine.next_round
    settings = CONFIG.settings()
    accepted.close()
    assert began + settings.lease_ns < held_until <= began + settings.lease_ns + settings.grace_ns
    again = open_controller(CONFIG, places_in(tmp_path), log)
    assert again.machine.next_round == held_until, "a controller that is killed meanwhile waits as long"
    again.close()


def test_journal_of_another_version_is_rejected(tmp_path: Path, log: NodeLog) -> None:
    controller = open_controller(CONFIG, places_in(tmp_path), log)
    controller.close()
    forged = MAGIC + encode_turn(1, submitted("j1", peer=3), [StopJob("n1", Attempt("j1", 1), "")])
    journal_of(tmp_path).write_bytes(forged)
    with pytest.raises(WorldError, match=r"does not replay with version .*stop it by SIGTERM"):
        open_controller(CONFIG, places_in(tmp_path), log)


def test_metrics_match_the_reference(tmp_path: Path, log: NodeLog) -> None:
    controller = open_controller(CONFIG, places_in(tmp_path), log)
    controller.loop.post(submitted("j1"))
    figures = ControllerMetrics(controller.machine.counts(), controller.loop.turn_ns.histogram(), 1, 2, 3)
    controller.close()
    families = list(text_string_to_metric_families(b"".join(page_of(lambda: figures)).decode()))
    shown = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    document = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert shown == set(re.findall(r"`(cotenant_cluster_[a-z_]+)", document))
    samples = {
        (sample.name, sample.labels.get("state")): sample.value for family in families for sample in family.samples
    }
    assert samples["cotenant_cluster_jobs", "waiting"] == 1
    assert samples["cotenant_cluster_jobs", "running"] == 0
    assert samples["cotenant_cluster_refused_total", None] == 3


def test_invalid_address_is_rejected(tmp_path: Path, log: NodeLog) -> None:
    with pytest.raises(ConfigError, match=r"cluster.address = 'here'"):
        open_controller(ClusterConfig(listen="127.0.0.1:0", address="here"), places_in(tmp_path), log)
