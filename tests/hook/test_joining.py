"""A program that loads the hook joins a node by itself, stays attached, and runs unmanaged where it cannot join."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from cotenant.gate.process_pages import PROCESS_BYTES, PROCESSES
from cotenant.hook import shim
from cotenant.node import wire
from tests.support.fake_node import (
    ALL_SEALS,
    SIZE_SEALS,
    Answer,
    Connection,
    FakeNode,
    NodePages,
    SealedMemory,
    attach,
)
from tests.support.software_gpus import PROGRAMS

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
NOT_PERMITTED, OUT_OF_MEMORY = 800, 2
UNMANAGED = "cotenant: this program runs unmanaged: "


class Program:
    """A program that executes commands, with the hook before a driver that does nothing."""

    def __init__(self, home: Path, **variables: str) -> None:
        directory = home / "shim"
        if not directory.exists():
            shim.make_shim(directory, shim.null_driver())
        base = {name: value for name, value in os.environ.items() if not name.startswith(("COTENANT_", "CUDA_"))}
        environ = {**base, **shim.environment("shim", directory, base), **variables}
        command = [sys.executable, str(PROGRAMS / "joining.py")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, command: str) -> str:
        """Execute a command and return its answer."""
        self.send(command)
        return self.answer()

    def end(self) -> str:
        """Let the program end by itself, and return what it wrote to standard error."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return str(errors)


@pytest.fixture
def pages() -> Iterator[NodePages]:
    made = NodePages()
    yield made
    made.close()


@pytest.fixture
def path() -> Iterator[Path]:
    """Return a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="cotenant-") as directory:
        yield Path(directory) / "tenant.sock"


def test_program_joins_at_its_first_driver_call(tmp_path: Path, path: Path, pages: NodePages) -> None:
    variables = {"COTENANT_KIND": "offline", "COTENANT_MEMORY": "4GiB", "COTENANT_TOKEN": "abc"}
    environment = {"CUDA_VISIBLE_DEVICES": "GPU-1", "COTENANT_X": "x", "PATH": "/nowhere"}
    with (
        FakeNode(path, pages, environment=environment) as node,
        Program(tmp_path, COTENANT_SOCKET=str(path), **variables) as program,
    ):
        assert program.do("threads") == "0"
        assert node.connections == []
        assert program.do("init") == "0"
        [connection] = node.until_attached(1)
        request = connection.request
        assert request["fields"] == {"kind": "offline", "memory": "4GiB"}
        assert (request["token"], request["index"], request["generation"], request["visible"]) == ("abc", -1, 0, "")
        assert "joining.py" in request["command"]
        assert connection.pid == program.process.pid
        assert [program.do(f"variable {name}") for name in ("CUDA_VISIBLE_DEVICES", "COTENANT_X")] == ["GPU-1", "x"]
        assert program.do("variable PATH") == os.environ["PATH"]
        assert (program.do("threads"), program.do("descriptors")) == ("1", "0")
        assert [program.do("launch") for _ in range(3)] == ["0", "0", "0"]
        assert (connection.words()["generation"], connection.words()["sequence"]) == (connection.generation, 3)
        assert program.end() == ""
        node.until_attached(0)


def test_driver_calls_do_not_change_errno(tmp_path: Path, path: Path, pages: NodePages) -> None:
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert program.do("errno") == "77"
        node.until_attached(1)


def test_quota_holds(tmp_path: Path, path: Path, pages: NodePages) -> None:
    pages.write_quota(4096)
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert [program.do("allocate 3072"), program.do("allocate 2048")] == ["0", str(OUT_OF_MEMORY)]
        [connection] = node.until_attached(1)
        assert connection.ledger().allocated_bytes == 3072
        pages.write_quota(8192)
        assert program.do("allocate 2048") == "0"


def test_grant_file_names_socket_and_fields(tmp_path: Path, path: Path, pages: NodePages) -> None:
    grant = tmp_path / "grant"
    grant.write_text(f"# mounted\nkind = online\nsocket = {path}\n", encoding="utf-8")
    with (
        FakeNode(path, pages) as node,
        Program(tmp_path, COTENANT_GRANT=str(grant), COTENANT_TASK="t\udcff") as program,
    ):
        assert program.do("init") == "0"
        [connection] = node.until_attached(1)
        assert connection.request["grant"] == grant.read_text(encoding="utf-8")
        assert connection.request["fields"] == {"task": "t?"}


@pytest.mark.parametrize("command", ["fork init launch", "spawn", "vfork"])
def test_child_processes_attach_on_their_own(command: str, tmp_path: Path, path: Path, pages: NodePages) -> None:
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert program.do("launch") == "0"
        [parent] = node.until_attached(1)
        assert program.do(command) == "0"
        node.until(lambda: len(node.connections) == 2 and node.connections[1].is_closed)
        child = node.connections[1]
        assert (child.pid != parent.pid, child.request["index"]) == (True, -1)
        assert (parent.words()["sequence"], child.words()["sequence"]) == (1, 1)
        # The parent saw the child's pages before the child went on.
        assert parent.words()["mapped_epoch"] == 2
        assert program.do("launch") == "0"
        assert node.until_attached(1) == [parent]
        assert parent.words()["sequence"] == 2


def test_child_that_uses_no_driver_leaves_the_connection_alone(tmp_path: Path, path: Path, pages: NodePages) -> None:
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert program.do("init") == "0"
        assert program.do("fork threads descriptors") == "0"
        assert len(node.until_attached(1)) == len(node.connections) == 1


def test_program_after_exec_attaches_anew(tmp_path: Path, path: Path, pages: NodePages) -> None:
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert program.do("launch") == "0"
        [before] = node.until_attached(1)
        program.send("exec")
        assert program.do("launch") == "0"
        node.until(lambda: before.is_closed)
        [after] = node.until_attached(1)
        assert (after.pid, after.request["index"]) == (before.pid, -1)
        assert after.words()["sequence"] == 1


def test_closed_and_reused_descriptors_do_no_harm(tmp_path: Path, path: Path, pages: NodePages) -> None:
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert program.do("init") == "0"
        [connection] = node.until_attached(1)
        assert program.do("reopen") == "0"
        assert program.do("fork init launch") == "0"
        node.until(lambda: connection.words()["mapped_epoch"] == 2)
        assert program.do("launch") == "0"
        assert node.until_attached(1) == [connection]


def test_shared_descriptor_table_is_used_with_care(tmp_path: Path, path: Path, pages: NodePages) -> None:
    """Where the hook's thread cannot have its own table, it notices that a number is another file now."""
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert program.do("share_descriptors") == "0"
        assert (program.do("init"), program.do("descriptors")) == ("0", "2")
        [connection] = node.until_attached(1)
        assert program.do("fork init launch") == "0"
        node.until(lambda: connection.words()["mapped_epoch"] == 2)
        assert program.do("reopen") == "0"
        node.send_page(connection, 7, 1, connection.descriptor)
        node.until(lambda: connection.is_closed)
        node.until(lambda: program.do("threads") == "0")
        assert (program.do("launch"), program.do("descriptors")) == ("0", "200")
        assert program.end() == ""


def test_program_attaches_again_after_the_node_restarts(tmp_path: Path, path: Path, pages: NodePages) -> None:
    pages.write_quota(4096)
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert [program.do("launch"), program.do("allocate 4096")] == ["0", "0"]
        [before] = node.until_attached(1)
        index, generation = before.index, before.generation
        node.close()
        # Meanwhile the last rules stay in force.
        assert [program.do("launch"), program.do("allocate 1")] == ["0", str(OUT_OF_MEMORY)]
        others = NodePages()
        others.write_quota(8192)
        with FakeNode(path, others) as restarted:
            [after] = restarted.until_attached(1)
            assert (after.request["index"], after.request["generation"]) == (index, generation)
            restarted.until(lambda: program.do("allocate 512") == "0")
            assert program.do("launch") == "0"
            assert (after.words()["sequence"], after.words()["generation"]) == (3, generation)
            assert after.ledger().allocated_bytes > 4096
        others.close()


def test_node_may_forget_the_process(tmp_path: Path, path: Path, pages: NodePages) -> None:
    """A node that has lost its state gives the process another index, and its ledger is taken over."""

    def forget(node: FakeNode, connection: Connection) -> None:
        connection.request["index"] = -1
        attach(node, connection)

    node = FakeNode(path, pages)
    with Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert [program.do("launch"), program.do("allocate 1024")] == ["0", "0"]
        node.until_attached(1)
        node.close()
        others = NodePages()
        others.write_quota(4096)
        with FakeNode(path, others, forget, first_index=9) as restarted:
            [after] = restarted.until_attached(1)
            restarted.until(lambda: after.words()["generation"] == after.generation)
            assert after.index == 9
            restarted.until(lambda: program.do("allocate 1024") == "0")
            assert program.do("allocate 3072") == str(OUT_OF_MEMORY)
            assert program.do("launch") == "0"
            assert (after.words()["sequence"], after.ledger().allocated_bytes) == (2, 2048)
        others.close()


def test_wrong_descriptors_of_other_processes_are_ignored(tmp_path: Path, path: Path, pages: NodePages) -> None:
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert program.do("init") == "0"
        [connection] = node.until_attached(1)
        wrong = [
            SealedMemory(PROCESS_BYTES, SIZE_SEALS),  # others could write it
            SealedMemory(PROCESS_BYTES, ALL_SEALS & ~0x2),  # its owner could shorten it
            SealedMemory(PROCESS_BYTES // 2),
            SealedMemory(PROCESS_BYTES * 2),
        ]
        descriptors = [page.descriptor for page in wrong] + [os.open("/dev/zero", os.O_RDONLY)]
        node.epoch = 50
        for descriptor in descriptors:
            node.send_page(connection, 7, 1, descriptor)
        for message in ({"type": "page", "index": 7, "epoch": 50}, {"type": "news"}, {"type": 5}, {}):
            connection.send(message)
        good = SealedMemory(PROCESS_BYTES)
        for index in (PROCESSES, -1, 2**70 % 2**63):
            node.send_page(connection, index, 1, good.descriptor)
        node.epoch = 51
        node.send_page(connection, 7, 1, good.descriptor)
        node.until(lambda: connection.words()["mapped_epoch"] == 51)
        node.epoch = 40
        node.send_page(connection, 8, 1, good.descriptor)
        assert [program.do("launch"), program.do("launch")] == ["0", "0"]
        assert connection.words()["mapped_epoch"] == 51  # the largest, and none of the wrong ones
        assert node.until_attached(1) == [connection]
        for page in (*wrong, good):
            page.close()
        os.close(descriptors[-1])


def test_garbage_on_the_connection_makes_the_program_attach_again(tmp_path: Path, path: Path, pages: NodePages) -> None:
    with FakeNode(path, pages) as node, Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert program.do("init") == "0"
        [first] = node.until_attached(1)
        first.send_bytes(b"\xff" * 100)
        node.until(lambda: first.is_closed and len(node.attached) == 1)
        [second] = node.attached
        assert (second.request["index"], second.request["generation"]) == (first.index, first.generation)
        assert program.do("launch") == "0"


# ---- joining fails --------------------------------------------------------------------------------------------------


def refuse(_: FakeNode, connection: Connection) -> None:
    detail = "COTENANT_KIND is 'x'; use online or offline"
    connection.send({"type": "refusal", "reject": {"reason": "bad-request", "detail": detail, "retry_after_ns": 0}})


def violate(_: FakeNode, connection: Connection) -> None:
    connection.send({"type": "protocol-violation", "detail": "this node speaks version 2 of the hook protocol, not 1"})


def send_garbage(_: FakeNode, connection: Connection) -> None:
    connection.send_bytes(b"\x05\x00\x00\x00\xc1\xc1\xc1\xc1\xc1")


def send_huge_frame(_: FakeNode, connection: Connection) -> None:
    connection.send_bytes(b"\xff\xff\xff\x7f")


def send_another_version(node: FakeNode, connection: Connection) -> None:
    node.add(connection)
    node.send_attached(connection, version=2)


def send_without_pages(node: FakeNode, connection: Connection) -> None:
    node.add(connection)
    connection.send(
        {"type": "attached", "version": wire.HOOK_VERSION, "slot": 3, "generation": 17, "gpu": 0, "index": 0}
    )


def send_wrong_index(node: FakeNode, connection: Connection) -> None:
    node.add(connection)
    node.send_attached(connection, index=PROCESSES)


def send_foreign_pages(node: FakeNode, connection: Connection) -> None:
    """Send files that are not the node's pages."""
    node.add(connection)
    descriptors = [os.open("/dev/zero", os.O_RDONLY) for _ in range(3)]
    answer: dict[str, Any] = {
        "type": "attached",
        "version": wire.HOOK_VERSION,
        "slot": 3,
        "generation": 17,
        "gpu": 0,
        "index": 0,
    }
    connection.send({**answer, "process_generation": 1, "epoch": 1, "environment": {}}, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


ANSWERS: dict[str, tuple[Answer, str]] = {
    "refusal": (refuse, "the node refused it: COTENANT_KIND is 'x'; use online or offline"),
    "violation": (violate, "the node refused the request: this node speaks version 2 of the hook protocol, not 1"),
    "garbage": (send_garbage, "the node's answer cannot be read"),
    "huge frame": (send_huge_frame, "the node's answer cannot be read"),
    "another version": (send_another_version, "the node speaks another version of the protocol"),
    "no pages": (send_without_pages, "the node's answer cannot be read"),
    "wrong index": (send_wrong_index, "the node's answer cannot be read"),
    "foreign pages": (send_foreign_pages, "the node's answer cannot be read"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_program_runs_unmanaged_if_the_node_does_not_attach_it(
    name: str, tmp_path: Path, path: Path, pages: NodePages
) -> None:
    answer, reason = ANSWERS[name]
    with FakeNode(path, pages, answer), Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        assert [program.do("init"), program.do("launch"), program.do("allocate 512")] == ["0", "0", "0"]
        assert (program.do("threads"), program.do("descriptors")) == ("0", "0")
        [line] = program.end().splitlines()
        assert line.startswith(UNMANAGED)
        assert reason in line
    with FakeNode(path, pages, answer), Program(tmp_path, COTENANT_SOCKET=str(path), COTENANT_REQUIRED="1") as program:
        assert [program.do("init"), program.do("init")] == [str(NOT_PERMITTED)] * 2
        [line] = program.end().splitlines()
        assert line.startswith("cotenant: this program must not run unmanaged (COTENANT_REQUIRED=1): ")
        assert reason in line


@pytest.mark.slow
def test_wait_for_a_node_that_does_not_answer_is_bounded(tmp_path: Path, path: Path, pages: NodePages) -> None:
    with (
        FakeNode(path, pages, lambda _node, _connection: None),
        Program(tmp_path, COTENANT_SOCKET=str(path)) as silent,
        Program(tmp_path, COTENANT_SOCKET=str(tmp_path / "absent.sock")) as absent,
    ):
        for program in (silent, absent):
            program.send("init")
        assert [silent.answer(), absent.answer()] == ["0", "0"]
        assert f"{UNMANAGED}{path}: the node did not answer in time" in silent.end()
        assert f"{UNMANAGED}{tmp_path / 'absent.sock'}: No such file or directory" in absent.end()


def test_program_waits_for_a_node_that_is_starting(tmp_path: Path, path: Path, pages: NodePages) -> None:
    with Program(tmp_path, COTENANT_SOCKET=str(path)) as program:
        program.send("init")
        with FakeNode(path, pages) as node:
            assert program.answer() == "0"
            node.until_attached(1)


WRONG_VARIABLES = {
    "relative path": ({"COTENANT_SOCKET": "tenant.sock"}, "COTENANT_SOCKET must be an absolute path"),
    "long path": ({"COTENANT_SOCKET": "/" + "x" * 200}, "COTENANT_SOCKET is longer than a socket's path may be"),
    "no grant": ({"COTENANT_GRANT": "/nonexistent"}, "COTENANT_GRANT names /nonexistent, which cannot be read"),
    "long value": (
        {"COTENANT_SOCKET": "/tmp/x", "COTENANT_TASK": "x" * 5000},
        "COTENANT_TASK is longer than 4096 bytes",
    ),
}


@pytest.mark.parametrize("name", WRONG_VARIABLES)
def test_wrong_variables_are_named(name: str, tmp_path: Path) -> None:
    variables, reason = WRONG_VARIABLES[name]
    with Program(tmp_path, **variables) as program:
        assert program.do("init") == "0"
        assert program.end().startswith(f"{UNMANAGED}{reason}")


@pytest.mark.parametrize("variables", [{}, {"COTENANT_TASK": "train"}, {"COTENANT_SOCKET": ""}])
def test_program_that_did_not_ask_to_join_runs_silently(variables: dict[str, str], tmp_path: Path) -> None:
    with Program(tmp_path, **variables) as program:
        assert (program.do("init"), program.do("launch"), program.do("threads")) == ("0", "0", "0")
        assert program.end() == ""
