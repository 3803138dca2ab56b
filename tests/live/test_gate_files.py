"""Do the tenants of a device find each other in its file, and does the file outlive the daemon?"""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.domain.gate import GatePolicy, GateRules, GateSeat
from cotenant.domain.gpu import Gpu
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.errors import ConfigError, WorldError
from cotenant.format import wire
from cotenant.live.client import Connection, wish
from cotenant.live.gate import LiveGates, devices_in, path_of
from cotenant.policy.schedule import roster
from tests.live.indoors import Indoors, descriptors, until

GPUS = (Gpu("a", 1 << 30), Gpu("b", 1 << 30))
WEB = TenantSpec(Kind.ONLINE, 1, "web", share_ppm=900_000)
JOB = TenantSpec(Kind.OFFLINE, 7, "job", share_ppm=50_000)
ONE, TWO = GateSeat(0, 1, 1, online=True), GateSeat(1, 1, 7, online=False)
HELD = msgspec.structs.replace(ONE, least_ppm=900_000)


@pytest.fixture
def node() -> Iterator[Indoors]:
    before = descriptors()
    with Indoors(gpus=GPUS[:1]) as made:
        yield made
    assert descriptors() == before


class Tenant:
    """A tenant with its file mapped as the hook maps it: all to read, its own page and the floor to write."""

    def __init__(self, path: Path, spec: TenantSpec) -> None:
        self._connection = Connection(path)
        answer, handed = self._connection.ask(wire.Join(wire.VERSION, spec))
        assert isinstance(answer, wire.Welcome), answer
        self.terms = answer.terms
        _, reading, writing, *_ = handed
        assert not any(os.get_inheritable(descriptor) for descriptor in handed)
        with pytest.raises(PermissionError):
            mmap.mmap(reading, roster.PAGE_BYTES, prot=mmap.PROT_WRITE)
        self.file = mmap.mmap(reading, os.fstat(reading).st_size, access=mmap.ACCESS_READ)
        self.page = mmap.mmap(writing, roster.PAGE_BYTES, offset=roster.page_offset(self.terms.slot))
        for descriptor in handed:
            os.close(descriptor)

    def rules(self) -> GateRules:
        return roster.read_roster(memoryview(self.file))

    def own(self) -> bytes:
        begin = roster.page_offset(self.terms.slot)
        return self.file[begin : begin + roster.PAGE_BYTES]

    def leave(self) -> None:
        self._connection.ask(wire.Leave("exit 0"))
        self.close()

    def close(self) -> None:
        self._connection.close()
        self.file.close()
        self.page.close()


def test_a_welcome_finds_the_newcomer_on_the_roster_and_a_farewell_finds_it_gone(node: Indoors) -> None:
    web = Tenant(node.path, WEB)
    assert web.rules() == GateRules(seats=(HELD,))
    job = Tenant(node.path, JOB)
    seat = GateSeat(1, 1, 7, online=False, least_ppm=50_000)
    assert web.rules() == job.rules() == GateRules(seats=(HELD, seat))
    web.leave()
    assert job.rules() == GateRules(seats=(seat,))
    job.close()
    until(lambda: node.gates.read(0) == GateRules())


def test_a_tenant_finds_its_page_empty_whatever_the_one_before_left(node: Indoors) -> None:
    first = Tenant(node.path, WEB)
    first.page[:] = b"\xff" * roster.PAGE_BYTES
    other = Tenant(node.path, JOB)
    other.page[:] = b"\xee" * roster.PAGE_BYTES
    assert first.own() == b"\xff" * roster.PAGE_BYTES, "others come and go, and nobody touches it"
    first.leave()
    second = Tenant(node.path, WEB)
    assert (second.terms.slot, second.terms.generation) == (0, 2)
    assert second.own() == bytes(roster.PAGE_BYTES)
    assert other.own() == b"\xee" * roster.PAGE_BYTES
    second.close()
    other.close()


def test_a_wish_is_on_the_roster_when_it_is_confirmed(node: Indoors) -> None:
    web = Tenant(node.path, WEB)
    done = wish(node.path, wire.Pause(wire.VERSION, ["web"], all_offline=False, paused=True), "web")
    assert done.tenants == ["web"]
    assert web.rules().seats == (GateSeat(0, 1, 1, online=True, paused=True, least_ppm=900_000),)
    wish(node.path, wire.SetPriority(wire.VERSION, "web", 5), "web")
    assert web.rules().seats == (GateSeat(0, 1, 5, online=True, paused=True, least_ppm=900_000),)
    terms = node.pages.read(0)
    assert terms is not None
    assert terms.priority == 5
    wish(node.path, wire.SetObjective(wire.VERSION, "web", 20_000_000), "web")
    terms = node.pages.read(0)
    assert terms is not None
    assert (terms.priority, terms.slo_ns) == (5, 20_000_000)
    with pytest.raises(ConfigError, match="no tenant is called 'job'"):
        wish(node.path, wire.SetPriority(wire.VERSION, "job", 5), "job")
    web.close()


def test_a_node_without_devices_hands_over_no_gate_and_pauses_nobody() -> None:
    with Indoors() as node, Connection(node.path) as tenant:
        answer, handed = tenant.ask(wire.Join(wire.VERSION, WEB))
        assert isinstance(answer, wire.Welcome)
        assert len(handed) == 1
        os.close(handed[0])
        with pytest.raises(WorldError, match="the node knows no GPU"):
            wish(node.path, wire.Pause(wire.VERSION, ["web"], all_offline=False, paused=True), "web")


def fill(gates: LiveGates, slot: int, byte: bytes) -> None:
    begin = roster.page_offset(slot)
    gates._files[0].memory[begin : begin + roster.PAGE_BYTES] = byte * roster.PAGE_BYTES


def page(gates: LiveGates, slot: int) -> bytes:
    begin = roster.page_offset(slot)
    return gates._files[0].memory[begin : begin + roster.PAGE_BYTES]


@pytest.mark.parametrize("slots", [2, 1, 9], ids=["as before", "with fewer slots", "with more slots"])
def test_a_restart_keeps_the_file_and_what_tenants_wrote(tmp_path: Path, slots: int) -> None:
    rules = GateRules(GatePolicy.STRICT, seats=(ONE, TWO))
    first = LiveGates(tmp_path, 2)
    first.seat(0, rules)
    fill(first, 1, b"x")
    first.close()
    size_bytes, inode = path_of(tmp_path, 0).stat().st_size, path_of(tmp_path, 0).stat().st_ino
    second = LiveGates(tmp_path, slots)
    assert second.read(0) == rules
    second.seat(0, rules)
    assert page(second, 1) == b"x" * roster.PAGE_BYTES, "it is the same tenant"
    found = path_of(tmp_path, 0).stat()
    assert (found.st_ino, found.st_size) == (inode, max(size_bytes, roster.file_bytes(slots)))
    second.seat(0, GateRules(seats=(ONE, GateSeat(1, 2, 7, online=False))))
    assert page(second, 1) == bytes(roster.PAGE_BYTES), "it is another one"
    second.close()


def test_a_node_with_fewer_slots_has_room_for_the_tenants_of_the_one_before(tmp_path: Path) -> None:
    gates = LiveGates(tmp_path, 1)
    seat = GateSeat(8, 3, 7, online=False)
    gates.seat(0, GateRules(seats=(ONE, seat)))
    assert gates.read(0) == GateRules(seats=(ONE, seat))
    assert page(gates, 8) == bytes(roster.PAGE_BYTES)
    gates.close()


def test_what_is_left_of_a_device_on_which_nobody_is_says_so(tmp_path: Path) -> None:
    first = LiveGates(tmp_path, 2)
    for gpu in (0, 1, 2):
        first.seat(gpu, GateRules(seats=(ONE,)))
    first.close()
    second = LiveGates(tmp_path, 2)
    second.keep_only([0, 2])
    assert [len((second.read(gpu) or GateRules()).seats) for gpu in devices_in(tmp_path)] == [1, 0, 1]
    second.close()


def test_a_file_that_is_no_roster_becomes_one_and_one_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    path_of(tmp_path, 0).write_bytes(b"this is a letter" * 1000)
    gates = LiveGates(tmp_path, 2)
    assert gates.read(0) is not None
    gates.seat(0, GateRules(seats=(TWO,)))
    assert gates.read(0) == GateRules(seats=(TWO,))
    assert page(gates, 1) == bytes(roster.PAGE_BYTES)
    path_of(tmp_path, 1).mkdir()
    before = descriptors()
    with pytest.raises(WorldError, match="cannot make the gate's file"):
        gates.handles(1)
    assert descriptors() == before
    gates.close()
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match="cannot make"):
        LiveGates(tmp_path / "file" / "pages", 2)
