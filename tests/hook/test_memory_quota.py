"""A tenant gets all memory that its quota allows over all its processes, and not a byte more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.gate.grant import Kind
from cotenant.runner.clock import pause
from cotenant.softgpu import fault, manage
from tests.support.cuda_programs import ScriptedProgram
from tests.support.ledger_files import LedgerFixture

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

MIB = 1 << 20
FULL = "CUDA_ERROR_OUT_OF_MEMORY"
KINDS = ("alloc", "pitch", "array", "box", "mipmap")
ENDS = {"alloc": "free", "pitch": "free", "array": "array_end", "box": "array_end", "mipmap": "mipmap_end"}


@pytest.fixture
def quotas(softgpu: Path, tmp_path: Path) -> Iterator[LedgerFixture]:
    fixture = LedgerFixture(softgpu, tmp_path, 0, 0)
    yield fixture
    fixture.close()


def test_quota_covers_all_processes_of_a_tenant_only(quotas: LedgerFixture) -> None:
    quotas.allow(0, 10 * MIB)
    first_process, second_process, stranger = quotas.start(0), quotas.start(0), quotas.start(1)
    first = first_process.do("alloc", 6 * MIB)
    second_process.do("alloc", 3 * MIB)
    assert second_process.code("alloc", 2 * MIB) == FULL
    assert first_process.code("alloc", 2 * MIB) == FULL
    assert stranger.do("alloc", 500 * MIB)  # without a quota, next to a tenant at its limit
    assert (quotas.line(first_process).denied, quotas.line(second_process).denied, quotas.line(stranger).denied) == (
        1,
        1,
        0,
    )
    assert quotas.truth(0) == 9 * MIB  # what was refused never reached the device
    first_process.do("free", first)
    assert quotas.truth(0) == 3 * MIB  # and what was freed did
    second_process.do("alloc", 7 * MIB)
    assert first_process.code("alloc", 1) == FULL
    assert quotas.truth(0, "memory_peak_bytes") == 10 * MIB
    quotas.allow(0, 11 * MIB)  # at once, for processes that run
    first_process.do("alloc", MIB)
    assert quotas.held(0) == quotas.truth(0) == 11 * MIB


def test_program_sees_its_quota_as_the_device_memory(quotas: LedgerFixture) -> None:
    unlimited = quotas.start(1)
    quotas.allow(0, 64 * MIB)
    limited = quotas.start(0)
    total = unlimited.do("total_bytes")
    assert limited.do("total_bytes") == 64 * MIB < total
    limited.do("alloc", 10 * MIB)
    assert limited.do("free_bytes") == 54 * MIB
    limited.do("managed", 4 * MIB)  # counts, wherever it is
    assert limited.do("free_bytes") == 50 * MIB
    assert limited.code("managed", 51 * MIB) == FULL
    unlimited.do("alloc", total - 30 * MIB)
    assert limited.do("free_bytes") == 20 * MIB  # more than this the device does not have
    quotas.allow(0, 10 * total)
    assert limited.do("total_bytes") == total
    assert quotas.page(limited).fault == 0


def take(process: ScriptedProgram, kind: str, rng: random.Random) -> tuple[str, int] | None:
    """Return one allocation of this kind; None if it was refused."""
    size = rng.randrange(1, 3 * MIB)
    if kind == "pitch":
        process.tell(kind, rng.randrange(1, 4000), rng.randrange(1, 700))
    elif kind in {"box", "mipmap"}:
        sides = rng.randrange(1, 200), rng.randrange(1, 200), rng.choice((0, rng.randrange(1, 9)))
        process.tell("box", *sides, **({"levels": rng.randrange(1, 12)} if kind == "mipmap" else {}))
    else:
        process.tell(kind, size % 32768 + 1 if kind == "array" else size)
    code, values, _ = process.receive()
    assert code in {"CUDA_SUCCESS", FULL}
    return (ENDS[kind], values[0]) if values else None


def test_ledger_equals_the_device_after_every_call(quotas: LedgerFixture) -> None:
    """Plain, pitched and managed memory, arrays of every shape, contexts that end with what is in them."""
    rng = random.Random(6)
    quota = 12 * MIB
    processes = [quotas.start(0) for _ in range(2)]
    quotas.allow(0, quota)
    allocations: list[list[tuple[str, int]]] = [[], []]
    refused = dict.fromkeys(KINDS, 0)
    for step in range(300):
        index, kind = rng.randrange(2), KINDS[step % len(KINDS)]
        if allocations[index] and rng.random() < 0.4:
            end, handle = allocations[index].pop(rng.randrange(len(allocations[index])))
            processes[index].do(end, handle)
        elif (allocation := take(processes[index], kind, rng)) is not None:
            allocations[index].append(allocation)
        else:
            refused[kind] += 1
        assert quotas.held(0) == quotas.truth(0) <= quota, (step, kind)
    assert min(refused[kind] for kind in ("alloc", "pitch", "box", "mipmap")) > 0
    assert sum(quotas.line(process).denied for process in processes) == sum(refused.values())
    assert quota // 2 < quotas.truth(0, "memory_peak_bytes") <= quota
    processes[0].do("destroy_context")  # takes along all that was made in it
    assert quotas.held(0) == quotas.truth(0)
    assert quotas.line(processes[0]).held_bytes == 0


def test_memory_is_released_with_its_context(quotas: LedgerFixture) -> None:
    process = quotas.start(0)
    process.do("alloc", MIB)
    second = process.do("new_context")
    process.do("alloc", 2 * MIB)
    process.do("array", 1024)
    primary = process.do("retain_primary")
    process.do("retain_primary")
    process.do("use_context", primary)
    process.do("alloc", 4 * MIB)
    quotas.measure()  # contexts take nothing on this device
    assert quotas.held(0) == quotas.truth(0) == 7 * MIB + 1024
    process.do("end_context", second)
    assert quotas.held(0) == quotas.truth(0) == 5 * MIB
    process.do("release_primary")
    assert quotas.held(0) == 5 * MIB  # it is still retained once
    process.do("release_primary")
    assert quotas.held(0) == quotas.truth(0) == MIB
    process.do("use_context", process.do("retain_primary"))
    process.do("alloc", 4 * MIB)
    process.do("reset_primary")
    quotas.measure()
    assert quotas.held(0) == quotas.truth(0) == MIB


def test_contexts_and_code_are_charged(tmp_path: Path) -> None:
    """On a device where they take memory, once the node has said how much a context does."""
    gpu = tmp_path / "gpu"
    manage.create(gpu, "v100", 1, context_bytes=40 * MIB, counts_code=True)
    quotas = LedgerFixture(gpu, tmp_path, 0)
    try:
        quotas.learn_context(40 * MIB)
        process = quotas.start(0)
        assert quotas.held(0) == quotas.truth(0) > 40 * MIB
        before = quotas.held(0)
        quotas.allow(0, before + 41 * MIB)
        second = process.do("new_context")
        assert process.code("new_context") == FULL
        assert quotas.line(process).contexts == 2
        module = process.do("load")
        assert quotas.held(0) == quotas.truth(0) > before + 40 * MIB
        process.do("unload", module)
        process.do("end_context", second)
        assert quotas.held(0) == quotas.truth(0) == before
        line = quotas.line(process)
        assert (line.contexts, line.code_bytes) == (1, before - 40 * MIB)
    finally:
        quotas.close()
        manage.destroy(gpu)


def test_memory_of_a_dead_process_is_charged_until_the_node_clears_it(quotas: LedgerFixture) -> None:
    quotas.allow(0, 10 * MIB)
    first, second = quotas.start(0), quotas.start(0)
    first.do("alloc", 6 * MIB)
    first.kill()
    assert quotas.held(0) >= 6 * MIB
    assert second.code("alloc", 8 * MIB) == FULL  # after a moment, because no node clears its line here
    quotas.bury()
    assert quotas.held(0) == 0
    second.do("alloc", 8 * MIB)
    assert quotas.held(0) == quotas.truth(0) == 8 * MIB


def test_online_tenant_waits_for_memory_within_its_quota(quotas: LedgerFixture) -> None:
    quotas.allow(0, 100 * MIB, Kind.ONLINE)
    service, hoarder = quotas.start(0), quotas.start(1)
    hoarder.do("alloc", hoarder.do("free_bytes") - 20 * MIB)
    quotas.set_reclaimable(0, quotas.held(1))
    assert hoarder.code("alloc", 30 * MIB) == FULL  # offline: the driver's error, at once
    service.tell("alloc", 30 * MIB)
    while quotas.line(service).wanted_bytes != 30 * MIB:
        pause(0.002)
    hoarder.kill()
    code, _, _ = service.receive()
    assert code == "CUDA_SUCCESS"
    assert quotas.line(service).wanted_bytes == 0
    assert quotas.truth(0) == 30 * MIB


def test_online_tenant_does_not_wait_for_memory_that_cannot_be_reclaimed(quotas: LedgerFixture) -> None:
    quotas.allow(0, 100 * MIB, Kind.ONLINE)
    service, other = quotas.start(0), quotas.start(1)
    other.do("alloc", other.do("free_bytes") - 20 * MIB)
    for reclaimable_bytes in (0, 9 * MIB):
        quotas.set_reclaimable(0, reclaimable_bytes)
        before = quotas.page(service).begun
        assert service.code("alloc", 30 * MIB) == FULL
        assert quotas.page(service).begun == before + 1  # a wait would end this change and begin another


def test_lost_device_is_recorded_in_the_ledger_line(quotas: LedgerFixture) -> None:
    first, second = quotas.start(0), quotas.start(0)
    assert fault.inject(quotas.softgpu, 0, fault.KINDS["illegal-address"], client=first.process.pid) == 1
    assert first.code("sync") == first.code("sync") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert (quotas.page(first).fault, quotas.page(second).fault) == (700, 0)
    assert second.do("alloc", MIB)
