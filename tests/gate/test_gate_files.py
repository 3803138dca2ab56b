"""The tenants of a device share one gate file, which survives a restart of the daemon."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cotenant.errors import ConfigError, WorldError
from cotenant.gate import tenant_table
from cotenant.gate.gate_file import LiveTenantTables, devices_in, gate_path
from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules
from cotenant.node import wire
from cotenant.node.client.connection import Connection, send_command
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import TenantSpec
from tests.support.node_in_process import InProcessNode, descriptors, until

pytestmark = pytest.mark.live

GPUS = (Gpu("a", 1 << 30), Gpu("b", 1 << 30))
WEB = TenantSpec(Kind.ONLINE, 1, "web", share_ppm=900_000)
JOB = TenantSpec(Kind.OFFLINE, 7, "job", share_ppm=50_000)
ONE, TWO = GateEntry(0, 1, 1, online=True), GateEntry(1, 1, 7, online=False)
HELD = msgspec.structs.replace(ONE, guaranteed_ppm=900_000)


@pytest.fixture
def node() -> Iterator[InProcessNode]:
    before = descriptors()
    with InProcessNode(gpus=GPUS[:1]) as opened:
        yield opened
    assert descriptors() == before


class Tenant:
    """A tenant with its file mapped as the hook maps it: all to read, its own page and the floor to write."""

    def __init__(self, path: Path, spec: TenantSpec) -> None:
        self._connection = Connection(path)
        answer, handed = self._connection.ask(wire.Join(wire.VERSION, spec))
        assert isinstance(answer, wire.Welcome), answer
        self.grant = answer.grant
        _, reading, writing, *_ = handed
        assert not any(os.get_inheritable(descriptor) for descriptor in handed)
        with pytest.raises(PermissionError):
            mmap.mmap(reading, tenant_table.PAGE_BYTES, prot=mmap.PROT_WRITE)
        self.file = mmap.mmap(reading, os.fstat(reading).st_size, access=mmap.ACCESS_READ)
        self.page = mmap.mmap(writing, tenant_table.PAGE_BYTES, offset=tenant_table.page_offset(self.grant.slot))
        for descriptor in handed:
            os.close(descriptor)

    def rules(self) -> GateRules:
        return tenant_table.read_tenant_table(memoryview(self.file))

    def own(self) -> bytes:
        begin = tenant_table.page_offset(self.grant.slot)
        return self.file[begin : begin + tenant_table.PAGE_BYTES]

    def leave(self) -> None:
        self._connection.ask(wire.Leave("exit 0"))
        self.close()

    def close(self) -> None:
        self._connection.close()
        self.file.close()
        self.page.close()


def test_tenant_table_contains_a_tenant_from_welcome_to_farewell(node: InProcessNode) -> None:
    web = Tenant(node.path, WEB)
    assert web.rules() == GateRules(entries=(HELD,))
    job = Tenant(node.path, JOB)
    entry = GateEntry(1, 1, 7, online=False, guaranteed_ppm=50_000)
    assert web.rules() == job.rules() == GateRules(entries=(HELD, entry))
    web.leave()
    assert job.rules() == GateRules(entries=(entry,))
    job.close()
    until(lambda: node.gates.read(0) == GateRules())


def test_page_of_a_new_tenant_is_empty(node: InProcessNode) -> None:
    first = Tenant(node.path, WEB)
    first.page[:] = b"\xff" * tenant_table.PAGE_BYTES
    other = Tenant(node.path, JOB)
    other.page[:] = b"\xee" * tenant_table.PAGE_BYTES
    assert first.own() == b"\xff" * tenant_table.PAGE_BYTES, "joins and departures of others do not change it"
    first.leave()
    second = Tenant(node.path, WEB)
    assert (second.grant.slot, second.grant.generation) == (0, 2)
    assert second.own() == bytes(tenant_table.PAGE_BYTES)
    assert other.own() == b"\xee" * tenant_table.PAGE_BYTES
    second.close()
    other.close()


def test_change_is_in_the_tenant_table_when_it_is_confirmed(node: InProcessNode) -> None:
    web = Tenant(node.path, WEB)
    done = send_command(node.path, wire.Pause(wire.VERSION, ["web"], all_offline=False, paused=True), "web")
    assert done.tenants == ["web"]
    assert web.rules().entries == (GateEntry(0, 1, 1, online=True, paused=True, guaranteed_ppm=900_000),)
    send_command(node.path, wire.SetPriority(wire.VERSION, "web", 5), "web")
    assert web.rules().entries == (GateEntry(0, 1, 5, online=True, paused=True, guaranteed_ppm=900_000),)
    grant = node.pages.read(0)
    assert grant is not None
    assert grant.priority == 5
    send_command(node.path, wire.SetObjective(wire.VERSION, "web", 20_000_000), "web")
    grant = node.pages.read(0)
    assert grant is not None
    assert (grant.priority, grant.slo_ns) == (5, 20_000_000)
    with pytest.raises(ConfigError, match="no tenant has the name 'job'"):
        send_command(node.path, wire.SetPriority(wire.VERSION, "job", 5), "job")
    web.close()


def test_node_without_devices_hands_over_no_gate() -> None:
    with InProcessNode() as node, Connection(node.path) as tenant:
        answer, handed = tenant.ask(wire.Join(wire.VERSION, WEB))
        assert isinstance(answer, wire.Welcome)
        assert len(handed) == 1
        os.close(handed[0])
        with pytest.raises(WorldError, match="the node has no GPU"):
            send_command(node.path, wire.Pause(wire.VERSION, ["web"], all_offline=False, paused=True), "web")


def fill(gates: LiveTenantTables, slot: int, byte: bytes) -> None:
    begin = tenant_table.page_offset(slot)
    gates._files[0].memory[begin : begin + tenant_table.PAGE_BYTES] = byte * tenant_table.PAGE_BYTES


def page(gates: LiveTenantTables, slot: int) -> bytes:
    begin = tenant_table.page_offset(slot)
    return gates._files[0].memory[begin : begin + tenant_table.PAGE_BYTES]


@pytest.mark.parametrize("slots", [2, 1, 9], ids=["as before", "with fewer slots", "with more slots"])
def test_restart_keeps_the_file_and_the_pages(tmp_path: Path, slots: int) -> None:
    rules = GateRules(GatePolicy.STRICT, entries=(ONE, TWO))
    first = LiveTenantTables(tmp_path, 2)
    first.set_table(0, rules)
    fill(first, 1, b"x")
    first.close()
    size_bytes, inode = gate_path(tmp_path, 0).stat().st_size, gate_path(tmp_path, 0).stat().st_ino
    second = LiveTenantTables(tmp_path, slots)
    assert second.read(0) == rules
    second.set_table(0, rules)
    assert page(second, 1) == b"x" * tenant_table.PAGE_BYTES, "it is the same tenant"
    found = gate_path(tmp_path, 0).stat()
    assert (found.st_ino, found.st_size) == (inode, max(size_bytes, tenant_table.file_bytes(slots)))
    second.set_table(0, GateRules(entries=(ONE, GateEntry(1, 2, 7, online=False))))
    assert page(second, 1) == bytes(tenant_table.PAGE_BYTES), "it is another one"
    second.close()


def test_node_with_fewer_slots_keeps_existing_tenants(tmp_path: Path) -> None:
    gates = LiveTenantTables(tmp_path, 1)
    entry = GateEntry(8, 3, 7, online=False)
    gates.set_table(0, GateRules(entries=(ONE, entry)))
    assert gates.read(0) == GateRules(entries=(ONE, entry))
    assert page(gates, 8) == bytes(tenant_table.PAGE_BYTES)
    gates.close()


def test_file_of_a_device_without_tenants_has_an_empty_table(tmp_path: Path) -> None:
    first = LiveTenantTables(tmp_path, 2)
    for gpu in (0, 1, 2):
        first.set_table(gpu, GateRules(entries=(ONE,)))
    first.close()
    second = LiveTenantTables(tmp_path, 2)
    second.keep_only([0, 2])
    assert [len((second.read(gpu) or GateRules()).entries) for gpu in devices_in(tmp_path)] == [1, 0, 1]
    second.close()


def test_invalid_file_is_replaced_and_a_failure_is_reported(tmp_path: Path) -> None:
    gate_path(tmp_path, 0).write_bytes(b"this is a letter" * 1000)
    gates = LiveTenantTables(tmp_path, 2)
    assert gates.read(0) is not None
    gates.set_table(0, GateRules(entries=(TWO,)))
    assert gates.read(0) == GateRules(entries=(TWO,))
    assert page(gates, 1) == bytes(tenant_table.PAGE_BYTES)
    gate_path(tmp_path, 1).mkdir()
    before = descriptors()
    with pytest.raises(WorldError, match="cannot create the gate file"):
        gates.handles(1)
    assert descriptors() == before
    gates.close()
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match="cannot create"):
        LiveTenantTables(tmp_path / "file" / "pages", 2)
