"""A controller in this process: the real loop, listener, TLS, journal and state machine on a manual clock."""

import contextlib
import shutil
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Self

from cotenant.cluster import wire
from cotenant.cluster.daemon.admin_service import AdminService
from cotenant.cluster.daemon.authority import open_authority
from cotenant.cluster.daemon.client import Conversation, talk, talk_unauthenticated
from cotenant.cluster.daemon.enrol import enrol, token_text
from cotenant.cluster.daemon.identity import Identity, client_context, server_context, unauthenticated_context
from cotenant.cluster.daemon.listener import BACKLOG, PATIENCE_NS, ControllerListener
from cotenant.cluster.daemon.registry import CertificateRegistry
from cotenant.cluster.host import ClusterHost
from cotenant.cluster.model.cluster import ClusterSettings, GpuReport, JobSpec
from cotenant.cluster.model.event import ClusterEvent, ClusterStarted, ClusterWoke, NodeReport
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.cluster.wire import Role
from cotenant.runner.address import join_address, listen_at
from cotenant.runner.clock import unix_ns
from cotenant.runner.journal_file import FileJournal
from cotenant.runner.live_loop import LiveLoop
from tests.support.node_in_process import BOUND_S, ManualClock, NodeThread, until

SETTINGS = ClusterSettings(round_ns=10**9, lease_ns=10 * 10**9, grace_ns=5 * 10**9)
GPU = GpuReport("V100", 16 << 30, 12 << 30, 500_000)


def job(name: str, user: str = "anna") -> JobSpec:
    return JobSpec(name, user, command=("true",))


def report(node: str, epoch: int = 1, gpus: int = 1) -> NodeReport:
    return NodeReport(node, epoch, (GPU,) * gpus)


class ControllerFixture:
    """A controller in a thread; if anything but `close` ends it, the test fails."""

    def __init__(self, *, most: int = 40, port: int = 0, home: Path | None = None) -> None:
        self.home = home or Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        self.clock = ManualClock(10**12)
        self.said: list[str] = []
        self.authority = open_authority(self.home, unix_ns())
        listener = listen_at(f"127.0.0.1:{port}", "listen", BACKLOG)
        self.address = join_address(*listener.getsockname()[:2])
        self.registry = CertificateRegistry(self.home / "register.json")
        self.machine = ClusterMachine()
        self.loop: LiveLoop[ClusterEvent] = LiveLoop(self.clock, ClusterWoke())
        admin = AdminService(self.authority, self.registry, self.machine, self.clock, self.address)
        context = server_context(self.identity(Role.CONTROLLER, "controller"))
        self.listener = ControllerListener(self.loop, self.clock, listener, context, admin, most, self.said.append)
        self.journal = FileJournal(self.home / "journal", 1 << 30, is_synced=True)
        self.loop.bind(ClusterHost(self.machine, self.listener, self.journal))
        self.loop.post(ClusterStarted(SETTINGS, "test", 0))
        self.operator = self.identity(Role.OPERATOR, "operator")
        self.running = NodeThread(self.loop.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self, *, keep: bool = False) -> None:
        """Stop, and fail if the controller has died before."""
        self.loop.stop("the test is over")
        host, _, port = self.address.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5):
            self.running.join()
        self.running.join()
        self.listener.close()
        self.journal.close()
        self.loop.close()
        if not keep:
            shutil.rmtree(self.home, ignore_errors=True)
        self.running.check()

    # -- identities ----------------------------------------------------------------------------------------------

    def identity(self, role: Role, name: str, days: float = 1.0) -> Identity:
        """Sign a certificate directly, without an entry in the registry."""
        return self.authority.identity(
            role, name, self.address, self.home / f"{role.value}-{name}.pem", days, unix_ns()
        )

    def token(self, uses: int = 1, valid_ns: int = 10**12, node: str = "") -> str:
        with talk(self.operator) as controller:
            request = wire.MakeToken(wire.VERSION, uses, valid_ns, node)
            return token_text(controller.ask(request, wire.NewToken).secret, self.authority.certificate)

    def joined(self, name: str, token: str = "") -> Identity:
        return enrol(self.address, token or self.token(), name, self.home / f"joined-{name}.pem", self.said.append)

    # -- peers ---------------------------------------------------------------------------------------------------

    def as_user(self, name: str = "anna") -> Conversation:
        return talk(self.identity(Role.USER, name))

    def unauthenticated(self) -> Conversation:
        return talk_unauthenticated(self.address, self.authority.certificate)

    def raw(self, identity: Identity | None = None) -> ssl.SSLSocket:
        """Open a TLS connection without a protocol on top."""
        host, _, port = self.address.rpartition(":")
        plain = socket.create_connection((host, int(port)), BOUND_S)
        context = unauthenticated_context(self.authority.certificate) if identity is None else client_context(identity)
        return context.wrap_socket(plain)

    def honest(self) -> wire.JobPage:
        """Return the answer that a well-behaved user must get whatever other peers do."""
        with talk(self.operator) as controller:
            return controller.ask(wire.ListJobs(wire.VERSION), wire.JobPage)

    def let_patience_run_out(self) -> None:
        """Move the clock past the deadlines of all peers but nodes; a request makes the loop check them."""
        self.clock.advance(PATIENCE_NS)
        self.honest()

    def settled(self, peers: int = 0) -> None:
        """Wait until this number of connections is left."""
        until(lambda: self.listener.connections == peers)


def heard(connection: ssl.SSLSocket) -> list[wire.Answer]:
    """Return all answers until the controller closes or resets the connection."""
    frames = wire.answer_frames()
    answers: list[wire.Answer] = []
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while data := connection.recv(1 << 16):
            answers += [wire.decode_answer(frame) for frame in frames.feed(data)]
    connection.close()
    return answers
