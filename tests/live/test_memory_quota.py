"""Does a tenant get what its quota allows and not a byte more, over all its processes, and nobody else any less?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.domain.tenant import Kind
from cotenant.live.clock import pause
from cotenant.live.softgpu import fault, manage
from tests.live.ledgers import Tenants
from tests.live.puppets import Puppet

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")
pytestmark = pytest.mark.timeout(240)

MIB = 1 << 20
FULL = "CUDA_ERROR_OUT_OF_MEMORY"
KINDS = ("alloc", "pitch", "array", "box", "mipmap")
ENDS = {"alloc": "free", "pitch": "free", "array": "array_end", "box": "array_end", "mipmap": "mipmap_end"}


@pytest.fixture
def tenants(softgpu: Path, tmp_path: Path) -> Iterator[Tenants]:
    made = Tenants(softgpu, tmp_path)
    yield made
    made.close()


def own_bytes(tenants: Tenants, *processes: Puppet) -> int:
    """What the code of processes that have come so far is believed to take; on this device it takes nothing."""
    for process in processes:
        process.do("sync")
    return sum(tenants.line(process).own_bytes for process in processes)


def test_one_quota_over_all_processes_and_nobody_else_notices(tenants: Tenants) -> None:
    tenants.allow(0, 10 * MIB)
    one, two, stranger = tenants.process(0), tenants.process(0), tenants.process(1)
    own = own_bytes(tenants, one, two)
    tenants.allow(0, 10 * MIB + own)
    first = one.do("alloc", 6 * MIB)
    two.do("alloc", 3 * MIB)
    assert two.code("alloc", 2 * MIB) == FULL
    assert one.code("alloc", 2 * MIB) == FULL
    assert stranger.do("alloc", 500 * MIB)  # without a quota, and beside somebody past its own
    assert (tenants.line(one).denied, tenants.line(two).denied, tenants.line(stranger).denied) == (1, 1, 0)
    assert tenants.truth(0) == 9 * MIB  # what was refused never reached the device
    one.do("free", first)
    assert tenants.truth(0) == 3 * MIB  # and what was freed did
    two.do("alloc", 7 * MIB)
    assert one.code("alloc", 1) == FULL
    assert tenants.peak(0) == 10 * MIB
    tenants.allow(0, 11 * MIB + own)  # at once, for processes that run
    one.do("alloc", MIB)
    assert tenants.held(0) - own == tenants.truth(0) == 11 * MIB


def test_a_program_is_told_of_its_quota_as_its_device(tenants: Tenants) -> None:
    free = tenants.process(1)
    tenants.allow(0, 64 * MIB)
    held = tenants.process(0)
    everything = free.do("total_bytes")
    assert held.do("total_bytes") == 64 * MIB < everything
    own = tenants.line(held).own_bytes
    held.do("alloc", 10 * MIB)
    assert held.do("free_bytes") == 54 * MIB - own
    held.do("managed", 4 * MIB)  # counts, wherever it is
    assert held.do("free_bytes") == 50 * MIB - own
    assert held.code("managed", 51 * MIB) == FULL
    free.do("alloc", everything - 30 * MIB)
    assert held.do("free_bytes") == 20 * MIB  # more than this the device does not have
    tenants.allow(0, 10 * everything)
    assert held.do("total_bytes") == everything
    assert tenants.line(held).fault == 0


def take(process: Puppet, kind: str, rng: random.Random) -> tuple[str, int] | None:
    """One allocation of some kind; None where it was refused."""
    size = rng.randrange(1, 3 * MIB)
    if kind == "pitch":
        process.tell(kind, rng.randrange(1, 4000), rng.randrange(1, 700))
    elif kind in {"box", "mipmap"}:
        sides = rng.randrange(1, 200), rng.randrange(1, 200), rng.choice((0, rng.randrange(1, 9)))
        process.tell("box", *sides, **({"levels": rng.randrange(1, 12)} if kind == "mipmap" else {}))
    else:
        process.tell(kind, size % 32768 + 1 if kind == "array" else size)
    code, values, _ = process.hear()
    assert code in {"CUDA_SUCCESS", FULL}
    return (ENDS[kind], values[0]) if values else None


def test_the_ledger_is_the_devices_truth_after_every_call(tenants: Tenants) -> None:
    """Plain, pitched and managed memory, arrays of every shape, contexts that end with what is in them."""
    rng = random.Random(6)
    quota = 12 * MIB
    processes = [tenants.process(0) for _ in range(2)]
    own = own_bytes(tenants, *processes)
    tenants.allow(0, quota + own)
    taken: list[list[tuple[str, int]]] = [[], []]
    refused = dict.fromkeys(KINDS, 0)
    for step in range(300):
        who, kind = rng.randrange(2), KINDS[step % len(KINDS)]
        if taken[who] and rng.random() < 0.4:
            end, handle = taken[who].pop(rng.randrange(len(taken[who])))
            processes[who].do(end, handle)
        elif (made := take(processes[who], kind, rng)) is not None:
            taken[who].append(made)
        else:
            refused[kind] += 1
        assert tenants.held(0) - own == tenants.truth(0) <= quota, (step, kind)
    assert min(refused[kind] for kind in ("alloc", "pitch", "box", "mipmap")) > 0
    assert sum(tenants.line(process).denied for process in processes) == sum(refused.values())
    assert quota // 2 < tenants.peak(0) <= quota
    processes[0].do("destroy_context")  # takes along all that was made in it
    assert tenants.held(0) - tenants.line(processes[1]).own_bytes == tenants.truth(0)
    assert tenants.line(processes[0]).held_bytes == 0


def test_memory_ends_with_its_own_context(tenants: Tenants) -> None:
    process = tenants.process(0)
    process.do("alloc", MIB)
    own = tenants.line(process).own_bytes
    second = process.do("new_context")
    process.do("alloc", 2 * MIB)
    process.do("array", 1024)
    primary = process.do("retain_primary")
    process.do("retain_primary")
    process.do("use_context", primary)
    process.do("alloc", 4 * MIB)
    assert tenants.held(0) - own == tenants.truth(0) == 7 * MIB + 1024
    process.do("end_context", second)
    assert tenants.held(0) - own == tenants.truth(0) == 5 * MIB
    process.do("release_primary")
    assert tenants.held(0) - own == 5 * MIB  # somebody has it still
    process.do("release_primary")
    assert tenants.held(0) - own == tenants.truth(0) == MIB
    process.do("use_context", process.do("retain_primary"))
    process.do("alloc", 4 * MIB)
    process.do("reset_primary")
    assert tenants.held(0) - own == tenants.truth(0) == MIB


def test_contexts_and_code_count(tmp_path: Path) -> None:
    """On a device where they take memory, once the node has said how much a context does."""
    gpu = tmp_path / "gpu"
    manage.create(gpu, "v100", 1, context_bytes=40 * MIB, counts_code=True)
    tenants = Tenants(gpu, tmp_path)
    try:
        tenants.ledgers.learn_context(0, 40 * MIB)
        process = tenants.process(0)
        process.do("sync")
        assert tenants.held(0) == tenants.truth(0) > 40 * MIB
        before = tenants.held(0)
        tenants.allow(0, before + 41 * MIB)
        second = process.do("new_context")
        assert process.code("new_context") == FULL
        module = process.do("load")
        assert tenants.held(0) == tenants.truth(0) > before + 40 * MIB
        process.do("unload", module)
        process.do("end_context", second)
        assert tenants.held(0) == tenants.truth(0) == before
    finally:
        tenants.close()
        manage.destroy(gpu)


def test_the_dead_count_until_the_node_knows(tenants: Tenants) -> None:
    tenants.allow(0, 10 * MIB)
    one, two = tenants.process(0), tenants.process(0)
    own = own_bytes(tenants, two)
    one.do("alloc", 6 * MIB)
    one.kill()
    assert tenants.held(0) >= 6 * MIB
    assert two.code("alloc", 8 * MIB) == FULL  # after a moment: nobody clears its line here
    tenants.bury()
    assert tenants.held(0) == own
    two.do("alloc", 8 * MIB)
    assert tenants.held(0) - own == tenants.truth(0) == 8 * MIB


def test_an_online_tenant_waits_for_room_that_its_quota_allows(tenants: Tenants) -> None:
    tenants.allow(0, 100 * MIB, Kind.ONLINE)
    service, hoarder = tenants.process(0), tenants.process(1)
    service.do("sync")
    hoarder.do("alloc", hoarder.do("free_bytes") - 20 * MIB)
    assert hoarder.code("alloc", 30 * MIB) == FULL  # offline: the driver's own word, at once
    service.tell("alloc", 30 * MIB)
    while tenants.line(service).wanted_bytes != 30 * MIB:
        pause(0.002)
    hoarder.kill()
    code, _, _ = service.hear()
    assert code == "CUDA_SUCCESS"
    assert tenants.line(service).wanted_bytes == 0
    assert tenants.truth(0) == 30 * MIB


def test_a_process_that_lost_its_device_says_so_in_its_line(tenants: Tenants) -> None:
    one, two = tenants.process(0), tenants.process(0)
    own_bytes(tenants, one, two)
    assert fault.inject(tenants.softgpu, 0, fault.KINDS["illegal-address"], client=one.process.pid) == 1
    assert one.code("sync") == one.code("sync") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert (tenants.line(one).fault, tenants.line(two).fault) == (700, 0)
    assert two.do("alloc", MIB)
