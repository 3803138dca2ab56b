"""The node as a service: status, stop, reload, readiness for systemd, and its journal."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.errors import WorldError
from cotenant.node.client.service import stop_node
from cotenant.node.config.file import Config, NodeConfig, RunConfig
from cotenant.node.config.protection import ProtectConfig
from cotenant.node.config.reload import difference
from cotenant.node.daemon.log import NodeLog
from cotenant.node.daemon.systemd import ServiceManager, is_journal_stream
from cotenant.node.directories import Directories, take_lock, verified_lock_holder
from cotenant.node.model.log_event import LogEvent, LogEventKind, LogLevel
from cotenant.units.toml import DurationNs
from tests.support.node_processes import NodeHarness, alive, until

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


# -- status and stop ----------------------------------------------------------------------------------------------


@pytest.mark.live
def test_status_shows_the_running_node(node_harness: NodeHarness) -> None:
    node = node_harness.node("--gpu", "a=2GiB", "--slots", "5")
    node_harness.tenant("x")
    record = node_harness.json("node", "status")
    assert record["running"] is True
    assert record["pid"] == node.pid
    directories = node_harness.directories
    assert record["sockets"] == [str(directories.tenant_socket), str(directories.operator_socket)]
    assert (record["slots"], record["tenants"], record["mps"]) == (5, 1, "off")
    assert record["storage"] == {"ok": True, "problem": "", "kept_turns": 0}
    assert [gpu["memory_bytes"] for gpu in record["gpus"]] == [2 << 30]
    shown = node_harness.run("node", "status")
    assert shown.returncode == 0
    for text in (f"pid {node.pid}", "1 in 5 slots", str(directories.state), "tenant.sock", "operator.sock", "2GiB"):
        assert text in shown.stdout


@pytest.mark.live
def test_status_and_stop_without_a_node(node_harness: NodeHarness) -> None:
    status = node_harness.run("node", "status")
    assert (status.returncode, status.stdout) == (3, "")
    assert "no node runs" in status.stderr
    record = node_harness.run("node", "status", "--json")
    assert record.returncode == 3
    assert '"running":false' in record.stdout
    stop = node_harness.run("node", "stop")
    assert (stop.returncode, "no node runs" in stop.stderr) == (0, True)
    reload = node_harness.run("node", "reload")
    assert reload.returncode == 75
    assert "no node answers" in reload.stderr


@pytest.mark.live
def test_stop_ends_the_node_and_keeps_its_tenants(node_harness: NodeHarness) -> None:
    node = node_harness.node()
    tenant = node_harness.tenant("x")
    stop = node_harness.run("node", "stop")
    assert stop.returncode == 0
    assert stop.stderr.endswith("cotenant: the node has ended\n")  # on a slow machine it reports that it waits first
    assert node.wait() == 0
    assert tenant.poll() is None


@pytest.mark.live
def test_stop_reports_a_node_that_does_not_end(node_harness: NodeHarness) -> None:
    node = node_harness.node()
    node.send_signal(signal.SIGSTOP)
    stop = node_harness.run("node", "stop", "--timeout", "3s")
    assert stop.returncode == 75
    assert "waiting for the node" in stop.stderr
    assert "has not ended within 3s" in stop.stderr
    node.send_signal(signal.SIGCONT)
    assert node.wait() == 0


@pytest.mark.live
def test_flags_before_the_command_count(node_harness: NodeHarness) -> None:
    node_harness.node()
    other = node_harness.run("node", "--runtime-dir", str(node_harness.home / "other"), "status")
    assert other.returncode == 3


def test_stop_does_not_signal_a_process_that_only_has_the_number_of_a_dead_node(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        (tmp_path / "node.lock").write_text(f"{bystander.pid}\n")
        assert stop_node(Directories(tmp_path, tmp_path), 10**9, lambda _: None) is False
        assert alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


def test_holder_of_a_lock_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "node.lock"
    assert verified_lock_holder(path) is None
    lock = take_lock(path)
    assert verified_lock_holder(path) == os.getpid()
    os.close(lock)
    assert verified_lock_holder(path) is None, "the file still has the number"


def test_lock_in_a_missing_directory_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="cannot open the lock"):
        take_lock(tmp_path / "none" / "node.lock")


# -- reload -------------------------------------------------------------------------------------------------------


def test_difference_separates_what_needs_a_restart() -> None:
    before = Config()
    after = Config(
        node=NodeConfig(slots=3, gate="strict", log="json"),
        protect=ProtectConfig(watch_period=DurationNs(7), probe="off"),
        run=RunConfig(grace=DurationNs(1)),
    )
    changes = difference(before, after)
    assert changes.applied == ["node.gate", "node.log", "protect.watch_period"]
    assert changes.needs_restart == ["node.slots", "protect.probe"]
    assert changes.in_force.node == NodeConfig(gate="strict", log="json")
    again = difference(changes.in_force, after)
    assert (again.applied, again.needs_restart) == ([], ["node.slots", "protect.probe"])


@pytest.mark.live
@pytest.mark.parametrize("how", ["command", "SIGHUP"])
def test_reload_applies_what_can_change(node_harness: NodeHarness, how: str) -> None:
    node = node_harness.node("--gpu", "a=2GiB")
    (node_harness.home / "config.toml").write_text('[node]\nslots = 3\ngate = "strict"\nbound = "7us"\n')
    if how == "command":
        done = node_harness.json("node", "reload")
        assert done == {"applied": ["node.gate", "node.bound"], "needs_restart": ["node.slots"]}
    else:
        node.send_signal(signal.SIGHUP)

    def rules() -> tuple[str, int]:
        tenant_list = node_harness.tenant_list()
        assert tenant_list is not None
        return tenant_list.rules.policy.value, tenant_list.rules.bound_ns

    until(lambda: rules() == ("strict", 7000))
    assert node_harness.json("node", "status")["slots"] == 64
    assert node_harness.json("replay", str(node_harness.directories.journal))["reproduced"]
    node.terminate()
    _, stderr = node.communicate()
    assert "the settings changed: node.gate = strict, node.bound = 7us" in stderr
    assert "a restart is needed for node.slots" in stderr


@pytest.mark.live
def test_reload_applies_limits_of_users_and_operators(node_harness: NodeHarness) -> None:
    node_harness.node("--gpu", "a=2GiB")
    before = node_harness.run("run", "--online", "--name", "before", "--", "true")
    assert before.returncode == 0, before.stderr
    limits = '[[limits]]\nuser = "*"\nkinds = ["offline"]\n\n[operators]\nusers = ["nobody"]\n'
    (node_harness.home / "config.toml").write_text(limits)
    applied = node_harness.json("node", "reload")["applied"]
    assert sorted(applied) == ["limits", "operators.users"]
    after = node_harness.run("run", "--online", "--name", "after", "--", "true")
    assert after.returncode == 2
    assert "online" in after.stderr
    assert node_harness.run("run", "--offline", "--name", "offline", "--", "true").returncode == 0
    assert node_harness.run("node", "status").returncode == 0  # the user that runs the node stays an operator


@pytest.mark.live
def test_invalid_config_changes_nothing_and_is_reported_to_both(node_harness: NodeHarness) -> None:
    node = node_harness.node("--gpu", "a=2GiB")
    (node_harness.home / "config.toml").write_text('[node]\ngate = "strict"\nbound = 5\n')
    done = node_harness.run("node", "reload")
    assert done.returncode == 2
    assert "the node keeps its present config" in done.stderr
    assert "node.bound" in done.stderr
    assert node_harness.run("node", "status").returncode == 0
    tenant_list = node_harness.tenant_list()
    assert tenant_list is not None
    assert tenant_list.rules.policy.value == "fill"
    assert node_harness.run("node", "stop").returncode == 0
    _, stderr = node.communicate()
    assert "the config was not reloaded: " in stderr
    assert "node.bound" in stderr


# -- systemd ------------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_service_manager_learns_of_start_reload_and_stop(node_harness: NodeHarness) -> None:
    path = node_harness.home / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(60)
        node = node_harness.node(env={**node_harness.environ, "NOTIFY_SOCKET": str(path)})
        assert receiver.recv(1000).decode() == f"READY=1\nSTATUS=serving {node_harness.directories.tenant_socket}"
        node_harness.run("node", "reload")
        assert receiver.recv(1000).decode().startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert receiver.recv(1000).decode().startswith("READY=1")
        node.terminate()
        assert receiver.recv(1000) == b"STOPPING=1"
        node.wait()


def test_service_manager_that_is_gone_is_ignored(tmp_path: Path) -> None:
    for address in ("", "relative", str(tmp_path / "none"), "@cotenant-test-none"):
        manager = ServiceManager({"NOTIFY_SOCKET": address})
        manager.ready("serving")
        manager.stopping()


def test_abstract_notify_socket_is_supported() -> None:
    name = f"cotenant-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).status("two\nlines")
        assert receiver.recv(100) == b"STATUS=two lines"


def test_lines_for_the_journal_have_a_priority_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    status = os.fstat(writer)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    log = NodeLog("text", descriptor=writer)
    log.report("serving")
    for level in LogLevel:
        log.write_event(LogEvent(1, 7, LogEventKind.LOST, "a was lost", level=level, unix_ns=10**18))
    log.set_form("json")
    log.report("more")
    os.close(writer)
    with os.fdopen(reader) as file:
        lines = file.read().splitlines()
    assert lines[:4] == ["<6>serving", "<6>a was lost [turn 7]", "<4>a was lost [turn 7]", "<3>a was lost [turn 7]"]
    assert lines[4].startswith('<6>{"ts":')


@pytest.mark.parametrize("stream", ["", "1", "x:y", "1:2"])
def test_other_streams_are_not_the_journal(stream: str) -> None:
    assert not is_journal_stream(2, {"JOURNAL_STREAM": stream})


def test_torn_line_of_a_log_file_does_not_damage_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log = NodeLog("text", descriptor=descriptor)
    log.report("one")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    log.report("two")
    monkeypatch.undo()
    log.report("three")
    os.close(descriptor)
    assert path.read_text().splitlines() == [
        "cotenant: one",
        "coten",
        "cotenant: 1 lines of this log were lost",
        "cotenant: three",
    ]


@pytest.mark.parametrize("name", ["cotenant-node.service", "user/cotenant-node.service"])
def test_unit_is_valid(name: str, tmp_path: Path) -> None:
    text = (UNITS / name).read_text()
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert all(line.startswith("[") or "=" in line for line in lines)
    assert "Type=notify" in lines
    assert "ExecReload=/usr/bin/cotenant node reload" in lines
    assert [line for line in lines if line.startswith("[")] == ["[Unit]", "[Service]", "[Install]"]
    unit = tmp_path / "cotenant-node.service"
    unit.write_text(text.replace("/usr/bin/cotenant", sys.executable))
    try:
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return  # without systemd only the form is checked
    assert (checked.returncode, checked.stderr) == (0, "")
