"""Who becomes a node of a cluster: with which token, under which name, for how long, and who no more?"""

import contextlib
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.errors import ConfigError, CotenantError, PeerError, WorldError
from cotenant.format import cluster_wire as wire
from cotenant.format.cluster_wire import Role
from cotenant.live.address import joined
from cotenant.live.clock import unix_ns
from cotenant.live.cluster import clerk
from cotenant.live.cluster.ask import talk
from cotenant.live.cluster.authority import key_of, make_request, open_authority
from cotenant.live.cluster.enrol import enrol, obtain_user, read_token, token_text
from cotenant.live.cluster.identity import Identity, read_identity, server_context
from cotenant.live.cluster.register import MOST_COUNTING, TOKENS_LIMIT, Register, Token
from tests.live.brains import Brains, job, report
from tests.live.indoors import BOUND_S
from tests.tool import BIN, run

VERSION = wire.VERSION
DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def brain() -> Iterator[Brains]:
    with Brains() as made:
        yield made


def is_heard(identity: Identity) -> bool:
    with talk(identity) as node:
        return node.ask(wire.Told(VERSION, 1, report(identity.name)), wire.Heard).sequence == 1


def test_a_token_makes_a_node_once(brain: Brains) -> None:
    token = brain.token()
    identity = brain.joined("once", token)
    assert (identity.role, identity.name, identity.brain) == (Role.NODE, "once", brain.address)
    assert read_identity(identity.path) == identity
    assert stat.S_IMODE(identity.path.stat().st_mode) == 0o600
    assert is_heard(identity)
    with pytest.raises(ConfigError, match=r"not known, was used up or has expired"):
        brain.joined("second", token)


def test_a_token_for_several_nodes_is_used_up_by_as_many(brain: Brains) -> None:
    token = brain.token(uses=2)
    assert is_heard(brain.joined("of-two-1", token))
    assert is_heard(brain.joined("of-two-2", token))
    with pytest.raises(ConfigError, match=r"used up"):
        brain.joined("of-two-3", token)


def test_a_token_has_an_end(brain: Brains, monkeypatch: pytest.MonkeyPatch) -> None:
    token = brain.token(valid_ns=DAY_NS)
    monkeypatch.setattr(clerk, "unix_ns", lambda: unix_ns() + DAY_NS)
    with pytest.raises(ConfigError, match=r"has expired"):
        brain.joined("late", token)


def test_a_name_has_one_holder_unless_an_operator_says_otherwise(brain: Brains) -> None:
    first = brain.joined("taken")
    with pytest.raises(ConfigError, match=r"there is a node 'taken' already.*--node taken"):
        enrol(brain.address, brain.token(), "taken", brain.home / "other.pem", brain.said.append)
    with pytest.raises(WorldError, match=r"is for node 'taken' only"):
        brain.joined("another", brain.token(node="taken"))
    again = enrol(brain.address, brain.token(node="taken"), "taken", brain.home / "again.pem", brain.said.append)
    assert is_heard(again)
    with pytest.raises(PeerError, match=r"certificate of node taken was revoked"):
        is_heard(first)


def test_who_lost_the_answer_asks_again_with_the_same_key(brain: Brains) -> None:
    token = brain.token()
    secret = token.partition(".")[0]
    _, request = make_request()
    for _ in range(2):
        with brain.stranger() as stranger:
            stranger.ask(wire.Enrol(VERSION, secret, "asks-twice", request), wire.Enrolled)
    _, other = make_request()
    with brain.stranger() as stranger, pytest.raises(ConfigError, match=r"used up"):
        stranger.ask(wire.Enrol(VERSION, secret, "asks-twice", other), wire.Enrolled)
    with brain.stranger() as stranger, pytest.raises(ConfigError, match=r"used up"):
        stranger.ask(wire.Enrol(VERSION, secret, "asks-as-another", request), wire.Enrolled)
    with brain.stranger() as stranger:
        for _ in range(MOST_COUNTING - 2):
            stranger.ask(wire.Enrol(VERSION, secret, "asks-twice", request), wire.Enrolled)
        with pytest.raises(ConfigError, match=r"has 8 certificates that count"):
            stranger.ask(wire.Enrol(VERSION, secret, "asks-twice", request), wire.Enrolled)


@pytest.mark.parametrize("node", ["", "comes-back"])
def test_who_was_revoked_does_not_come_back_by_the_token_it_used(tmp_path: Path, node: str) -> None:
    register = Register(tmp_path / "register.json")
    authority = open_authority(tmp_path, unix_ns())

    def joins(secret: str, request: str) -> bool:
        if register.admit(secret, "comes-back", key_of(request), 0) is not None:
            return False
        signed = authority.sign(Role.NODE, "comes-back", request, 1.0, unix_ns())
        register.note(Role.NODE, "comes-back", signed, key_of(request), 0)
        return True

    secret = str(register.make_token(1, 10, node, 0))
    _, request = make_request()
    assert joins(secret, request)
    assert joins(secret, request)
    register.revoke(Role.NODE, "comes-back", 0)
    assert not joins(secret, request)
    _, other = make_request()
    second, third = (str(register.make_token(1, 10, "comes-back", 0)) for _ in range(2))
    assert joins(second, other)
    assert joins(third, request)  # an operator's new token for that name: now this one is it
    assert not joins(second, other)


def test_the_secret_is_told_to_nobody_but_the_brain_that_made_the_token(brain: Brains, tmp_path: Path) -> None:
    other = open_authority(tmp_path, unix_ns())
    token = token_text(brain.token().partition(".")[0], other.certificate)
    with pytest.raises(PeerError, match=r"not the brain that made this token \(its fingerprint differs\)"):
        brain.joined("fooled", token)
    assert "fooled" not in "".join(brain.said)


def test_an_identity_of_another_cluster_is_none_here(brain: Brains, tmp_path: Path) -> None:
    other = open_authority(tmp_path, unix_ns())
    stranger = other.identity(Role.NODE, "n1", brain.address, tmp_path / "n1.pem", 1.0, unix_ns())
    with pytest.raises(WorldError, match=r"the brain's certificate is not of this cluster"):
        is_heard(stranger)


def test_an_expired_certificate_is_named(brain: Brains) -> None:
    identity = brain.identity(Role.NODE, "old", days=-0.01)
    with pytest.raises(WorldError, match=r"has expired; join anew, with a new token"):
        is_heard(identity)


def test_a_brain_whose_certificate_is_of_another_time_is_named(brain: Brains) -> None:
    """Served by a plain TLS server with such a certificate: a brain itself makes a new one in time."""
    own = brain.identity(Role.BRAIN, "late", days=-0.01)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            server_context(own).wrap_socket(listener.accept()[0], server_side=True)

    thread = threading.Thread(target=serve)
    thread.start()
    there = msgspec.structs.replace(brain.operator, brain=joined(*listener.getsockname()))
    with pytest.raises(WorldError, match=r"counts at another time \(certificate has expired\); check both clocks"):
        is_heard(there)
    thread.join(BOUND_S)
    listener.close()


def test_a_revoked_node_is_out_at_once_and_stays_out(brain: Brains) -> None:
    identity = brain.joined("banned")
    with talk(identity) as node, talk(brain.operator) as operator:
        node.ask(wire.Told(VERSION, 1, report("banned")), wire.Heard)
        operator.ask(wire.Revoke(VERSION, Role.NODE, "banned"), wire.Done)
        with pytest.raises(CotenantError):
            node.ask(wire.Told(VERSION, 2, report("banned")), wire.Heard)
        with pytest.raises(ConfigError, match=r"no node 'banned' has a certificate that counts"):
            operator.ask(wire.Revoke(VERSION, Role.NODE, "banned"), wire.Done)
    with pytest.raises(PeerError, match=r"certificate of node banned was revoked"):
        is_heard(identity)
    assert Register(brain.home / "register.json")._kept == brain.register._kept


def test_a_user_gets_an_identity_and_can_be_sent_away(brain: Brains) -> None:
    anna = obtain_user(brain.operator, "anna", brain.home / "anna.pem")
    with talk(anna) as user, talk(brain.operator) as operator:
        user.ask(wire.Submit(VERSION, job("a1", "anna")), wire.Done)
        operator.ask(wire.Revoke(VERSION, Role.USER, "anna"), wire.Done)
    with pytest.raises(PeerError, match=r"certificate of user anna was revoked"), talk(anna) as user:
        user.ask(wire.ListJobs(VERSION), wire.Jobs)


def test_a_renewed_certificate_counts_as_the_first_did(brain: Brains) -> None:
    identity = brain.joined("renews")
    _, request = make_request()
    with talk(identity) as node:
        renewed = node.ask(wire.Renew(VERSION, request), wire.Enrolled).certificate
        assert "BEGIN CERTIFICATE" in renewed
        assert len(brain.register._kept.issued["node renews"]) == 2
        for _ in range(MOST_COUNTING - 2):
            node.ask(wire.Renew(VERSION, request), wire.Enrolled)
        with pytest.raises(ConfigError, match=r"node renews has 8 certificates that count, which is enough"):
            node.ask(wire.Renew(VERSION, request), wire.Enrolled)
    assert is_heard(identity)


def test_there_are_only_so_many_tokens(tmp_path: Path) -> None:
    register = Register(tmp_path / "register.json")
    register._kept.tokens = {str(number): Token(10, 1) for number in range(TOKENS_LIMIT)}
    refused = register.make_token(1, 10, "", 0)
    assert not isinstance(refused, str)
    assert "let some run out first" in refused.detail
    assert isinstance(register.make_token(1, 20, "", 10), str)  # by now they have


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
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
        Register(tmp_path / "register.json")
    (tmp_path / "authority.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"cannot be read as the cluster's authority"):
        open_authority(tmp_path, unix_ns())


def test_a_name_that_no_certificate_can_have(brain: Brains) -> None:
    for name in ("", "-n", "a b", "a\n", "x" * 129):
        with pytest.raises(ConfigError, match=r"node-name"):
            brain.joined(name)


def test_without_the_library_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "cryptography.py").write_text("raise ImportError('not here')")
    done = run(
        [BIN / "cotenant", "cluster", "start", "--listen", "127.0.0.1:0"],
        tmp_path,
        {"PYTHONPATH": str(tmp_path), "COTENANT_DIRECTORY": str(tmp_path / "home")},
    )
    assert done.returncode == 75
    assert done.stdout.count("\n") == 1
    assert 'pip install "cotenant[cluster]"' in done.stdout
