"""Tests of enrolment of nodes and users."""

import contextlib
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.cluster import wire
from cotenant.cluster.daemon import admin_service as admin
from cotenant.cluster.daemon.authority import key_of, make_request, open_authority
from cotenant.cluster.daemon.client import talk
from cotenant.cluster.daemon.enrol import enrol, obtain_user, read_token, token_text
from cotenant.cluster.daemon.identity import Identity, read_identity, server_context
from cotenant.cluster.daemon.registry import MOST_COUNTING, TOKENS_LIMIT, CertificateRegistry, Token
from cotenant.cluster.wire import Role
from cotenant.errors import ConfigError, CotenantError, PeerError, WorldError
from cotenant.runner.address import join_address
from cotenant.runner.clock import unix_ns
from tests.support.cluster_controllers import ControllerFixture, job, report
from tests.support.node_in_process import BOUND_S
from tests.support.tools import BIN, run

pytestmark = pytest.mark.live

VERSION = wire.VERSION
DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def controller() -> Iterator[ControllerFixture]:
    with ControllerFixture() as made:
        yield made


def is_recorded(identity: Identity) -> bool:
    with talk(identity) as node:
        return node.ask(wire.ReportNode(VERSION, 1, report(identity.name)), wire.GrantLease).sequence == 1


def test_token_enrols_one_node(controller: ControllerFixture) -> None:
    token = controller.token()
    identity = controller.joined("once", token)
    assert (identity.role, identity.name, identity.controller) == (Role.NODE, "once", controller.address)
    assert read_identity(identity.path) == identity
    assert stat.S_IMODE(identity.path.stat().st_mode) == 0o600
    assert is_recorded(identity)
    with pytest.raises(ConfigError, match=r"not known, was used up or has expired"):
        controller.joined("second", token)


def test_token_enrols_as_many_nodes_as_it_has_uses(controller: ControllerFixture) -> None:
    token = controller.token(uses=2)
    assert is_recorded(controller.joined("of-two-1", token))
    assert is_recorded(controller.joined("of-two-2", token))
    with pytest.raises(ConfigError, match=r"used up"):
        controller.joined("of-two-3", token)


def test_expired_token_is_rejected(controller: ControllerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    token = controller.token(valid_ns=DAY_NS)
    monkeypatch.setattr(admin, "unix_ns", lambda: unix_ns() + DAY_NS)
    with pytest.raises(ConfigError, match=r"has expired"):
        controller.joined("late", token)


def test_node_name_is_unique_until_revoked(controller: ControllerFixture) -> None:
    first = controller.joined("taken")
    with pytest.raises(ConfigError, match=r"there is a node 'taken' already.*--node taken"):
        enrol(controller.address, controller.token(), "taken", controller.home / "other.pem", controller.said.append)
    with pytest.raises(WorldError, match=r"is for node 'taken' only"):
        controller.joined("another", controller.token(node="taken"))
    again = enrol(
        controller.address,
        controller.token(node="taken"),
        "taken",
        controller.home / "again.pem",
        controller.said.append,
    )
    assert is_recorded(again)
    with pytest.raises(PeerError, match=r"certificate of node taken was revoked"):
        is_recorded(first)


def test_enrolment_may_be_repeated_with_the_same_key(controller: ControllerFixture) -> None:
    token = controller.token()
    secret = token.partition(".")[0]
    _, request = make_request()
    for _ in range(2):
        with controller.unauthenticated() as unauthenticated:
            unauthenticated.ask(wire.Enrol(VERSION, secret, "asks-twice", request), wire.EnrolledIdentity)
    _, other = make_request()
    with controller.unauthenticated() as unauthenticated, pytest.raises(ConfigError, match=r"used up"):
        unauthenticated.ask(wire.Enrol(VERSION, secret, "asks-twice", other), wire.EnrolledIdentity)
    with controller.unauthenticated() as unauthenticated, pytest.raises(ConfigError, match=r"used up"):
        unauthenticated.ask(wire.Enrol(VERSION, secret, "asks-as-another", request), wire.EnrolledIdentity)
    with controller.unauthenticated() as unauthenticated:
        for _ in range(MOST_COUNTING - 2):
            unauthenticated.ask(wire.Enrol(VERSION, secret, "asks-twice", request), wire.EnrolledIdentity)
        with pytest.raises(ConfigError, match=r"has 8 certificates that count"):
            unauthenticated.ask(wire.Enrol(VERSION, secret, "asks-twice", request), wire.EnrolledIdentity)


@pytest.mark.parametrize("node", ["", "comes-back"])
def test_revoked_node_cannot_reuse_its_token(tmp_path: Path, node: str) -> None:
    registry = CertificateRegistry(tmp_path / "register.json")
    authority = open_authority(tmp_path, unix_ns())

    def joins(secret: str, request: str) -> bool:
        if registry.admit(secret, "comes-back", key_of(request), 0) is not None:
            return False
        signed = authority.sign(Role.NODE, "comes-back", request, 1.0, unix_ns())
        registry.note(Role.NODE, "comes-back", signed, key_of(request), 0)
        return True

    secret = str(registry.make_token(1, 10, node, 0))
    _, request = make_request()
    assert joins(secret, request)
    assert joins(secret, request)
    registry.revoke(Role.NODE, "comes-back", 0)
    assert not joins(secret, request)
    _, other = make_request()
    second, third = (str(registry.make_token(1, 10, "comes-back", 0)) for _ in range(2))
    assert joins(second, other)
    assert joins(third, request)  # an operator's new token for that name: now this one is it
    assert not joins(second, other)


def test_secret_is_sent_only_to_the_issuing_controller(controller: ControllerFixture, tmp_path: Path) -> None:
    other = open_authority(tmp_path, unix_ns())
    token = token_text(controller.token().partition(".")[0], other.certificate)
    with pytest.raises(PeerError, match=r"not the controller that made this token \(its fingerprint differs\)"):
        controller.joined("fooled", token)
    assert "fooled" not in "".join(controller.said)


def test_identity_of_another_cluster_is_rejected(controller: ControllerFixture, tmp_path: Path) -> None:
    other = open_authority(tmp_path, unix_ns())
    unauthenticated = other.identity(Role.NODE, "n1", controller.address, tmp_path / "n1.pem", 1.0, unix_ns())
    with pytest.raises(WorldError, match=r"the controller's certificate is not of this cluster"):
        is_recorded(unauthenticated)


def test_expired_certificate_is_reported(controller: ControllerFixture) -> None:
    identity = controller.identity(Role.NODE, "old", days=-0.01)
    with pytest.raises(WorldError, match=r"has expired; join anew, with a new token"):
        is_recorded(identity)


def test_expired_controller_certificate_is_reported(controller: ControllerFixture) -> None:
    """Served by a plain TLS server with such a certificate: a controller itself makes a new one in time."""
    own = controller.identity(Role.CONTROLLER, "late", days=-0.01)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            server_context(own).wrap_socket(listener.accept()[0], server_side=True)

    thread = threading.Thread(target=serve)
    thread.start()
    there = msgspec.structs.replace(controller.operator, controller=join_address(*listener.getsockname()))
    with pytest.raises(WorldError, match=r"counts at another time \(certificate has expired\); check both clocks"):
        is_recorded(there)
    thread.join(BOUND_S)
    listener.close()


def test_revoked_node_is_disconnected_and_stays_rejected(controller: ControllerFixture) -> None:
    identity = controller.joined("banned")
    with talk(identity) as node, talk(controller.operator) as operator:
        node.ask(wire.ReportNode(VERSION, 1, report("banned")), wire.GrantLease)
        operator.ask(wire.Revoke(VERSION, Role.NODE, "banned"), wire.Success)
        with pytest.raises(CotenantError):
            node.ask(wire.ReportNode(VERSION, 2, report("banned")), wire.GrantLease)
        with pytest.raises(ConfigError, match=r"no node 'banned' has a certificate that counts"):
            operator.ask(wire.Revoke(VERSION, Role.NODE, "banned"), wire.Success)
    with pytest.raises(PeerError, match=r"certificate of node banned was revoked"):
        is_recorded(identity)
    assert CertificateRegistry(controller.home / "register.json")._kept == controller.registry._kept


def test_user_identity_can_be_issued_and_revoked(controller: ControllerFixture) -> None:
    anna = obtain_user(controller.operator, "anna", controller.home / "anna.pem")
    with talk(anna) as user, talk(controller.operator) as operator:
        user.ask(wire.Submit(VERSION, job("a1", "anna")), wire.Success)
        operator.ask(wire.Revoke(VERSION, Role.USER, "anna"), wire.Success)
    with pytest.raises(PeerError, match=r"certificate of user anna was revoked"), talk(anna) as user:
        user.ask(wire.ListJobs(VERSION), wire.JobPage)


def test_renewed_certificate_is_accepted(controller: ControllerFixture) -> None:
    identity = controller.joined("renews")
    _, request = make_request()
    with talk(identity) as node:
        renewed = node.ask(wire.Renew(VERSION, request), wire.EnrolledIdentity).certificate
        assert "BEGIN CERTIFICATE" in renewed
        assert len(controller.registry._kept.issued["node renews"]) == 2
        for _ in range(MOST_COUNTING - 2):
            node.ask(wire.Renew(VERSION, request), wire.EnrolledIdentity)
        with pytest.raises(ConfigError, match=r"node renews has 8 certificates that count, which is enough"):
            node.ask(wire.Renew(VERSION, request), wire.EnrolledIdentity)
    assert is_recorded(identity)


def test_number_of_tokens_is_limited(tmp_path: Path) -> None:
    registry = CertificateRegistry(tmp_path / "register.json")
    registry._kept.tokens = {str(number): Token(10, 1) for number in range(TOKENS_LIMIT)}
    refused = registry.make_token(1, 10, "", 0)
    assert not isinstance(refused, str)
    assert "let some run out first" in refused.detail
    assert isinstance(registry.make_token(1, 20, "", 10), str)  # by now they have


def test_unreadable_identity_files_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for read in (read_token, read_identity):
        with pytest.raises(ConfigError, match=str(path)):
            read(path)
    path.write_text("hello")
    for read in (read_token, read_identity):
        with pytest.raises(ConfigError, match=str(path)):
            read(path)
    (tmp_path / "register.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot be read as the cluster's register"):
        CertificateRegistry(tmp_path / "register.json")
    (tmp_path / "authority.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"cannot be read as the cluster's authority"):
        open_authority(tmp_path, unix_ns())


def test_invalid_name_is_rejected(controller: ControllerFixture) -> None:
    for name in ("", "-n", "a b", "a\n", "x" * 129):
        with pytest.raises(ConfigError, match=r"node-name"):
            controller.joined(name)


def test_missing_library_is_reported_with_the_package_to_install(tmp_path: Path) -> None:
    (tmp_path / "cryptography.py").write_text("raise ImportError('not here')")
    done = run(
        [BIN / "cotenant", "cluster", "start", "--listen", "127.0.0.1:0"],
        tmp_path,
        {"PYTHONPATH": str(tmp_path), "COTENANT_DIRECTORY": str(tmp_path / "home")},
    )
    assert done.returncode == 75
    assert done.stdout.count("\n") == 1
    assert 'pip install "cotenant[cluster]"' in done.stdout
