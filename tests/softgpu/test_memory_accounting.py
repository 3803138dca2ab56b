"""Memory accounting of two processes with any allocations and kills: each is charged exactly what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cotenant.softgpu import manage
from tests.support.cuda_programs import ScriptedProgram

pytestmark = pytest.mark.live

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed (extra dev)")

UNIT = 2 << 20
ROUNDING = 512
PROCESSES = st.integers(0, 1)
RUNS = count()


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass
class Shared:
    """Memory that either process may hold, with the handles by which each holds it."""

    size: int
    owner: int  # the process that is charged
    kind: str  # "plain" or "physical"
    maker: int = -1  # the process that can free or export it; -1: it was killed
    account: int = -1  # the process whose account is charged
    names: list[list[int]] = field(default_factory=lambda: [[], []])

    def __post_init__(self) -> None:
        self.maker = self.account = self.owner

    @property
    def held(self) -> bool:
        return any(self.names)


class Memory(RuleBasedStateMachine):
    """A model of the charges, compared with two real processes after every step."""

    directory: Path

    def __init__(self) -> None:
        super().__init__()
        self.run_number = next(RUNS)
        self.peaks = [0, 0]
        self.programs = [self.program(process) for process in range(2)]
        self.shared: list[Shared] = []
        self.pools: list[dict[int, dict[int, int]]] = [{}, {}]  # by process and pool: its allocations and their bytes

    def program(self, process: int) -> ScriptedProgram:
        return ScriptedProgram(self.directory, SOFTGPU_ACCOUNT=f"run-{self.run_number}/{process}")

    def pick(self, draw: int, *, kind: str, holder: int) -> Shared | None:
        choices = [allocation for allocation in self.shared if allocation.kind == kind and allocation.names[holder]]
        return choices[draw % len(choices)] if choices else None

    @rule(process=PROCESSES, size=st.integers(1, 3 * UNIT))
    def allocate(self, process: int, size: int) -> None:
        pointer = self.programs[process].do("alloc", size)
        self.shared.append(Shared(rounded(size, ROUNDING), process, "plain"))
        self.shared[-1].names[process].append(pointer)

    @rule(process=PROCESSES, units=st.integers(1, 3))
    def create(self, process: int, units: int) -> None:
        handle = self.programs[process].do("create", units * UNIT)
        self.shared.append(Shared(units * UNIT, process, "physical"))
        self.shared[-1].names[process].append(handle)

    @rule(process=PROCESSES, draw=st.integers(0, 99))
    def open_or_close(self, process: int, draw: int) -> None:
        opened = self.pick(draw, kind="plain", holder=process)
        if opened is not None and opened.maker != process:
            self.programs[process].do("ipc_close", opened.names[process].pop())
            return
        allocation = self.pick(draw, kind="plain", holder=1 - process)
        if allocation is not None and allocation.maker == 1 - process:
            handle = self.programs[1 - process].do("ipc_get", allocation.names[1 - process][0])
            allocation.names[process].append(self.programs[process].do("ipc_open", handle))

    @rule(process=PROCESSES, draw=st.integers(0, 99))
    def free(self, process: int, draw: int) -> None:
        allocation = self.pick(draw, kind="plain", holder=process)
        if allocation is not None and allocation.maker == process:
            self.programs[process].do("free", allocation.names[process].pop())

    @rule(process=PROCESSES, draw=st.integers(0, 99))
    def hand_over(self, process: int, draw: int) -> None:
        allocation = self.pick(draw, kind="physical", holder=process)
        if allocation is None:
            return
        descriptor = self.programs[process].do("export", allocation.names[process][0])
        allocation.names[1 - process].append(self.programs[1 - process].do("import", descriptor=descriptor))
        os.close(descriptor)

    @rule(process=PROCESSES, draw=st.integers(0, 99))
    def release(self, process: int, draw: int) -> None:
        allocation = self.pick(draw, kind="physical", holder=process)
        if allocation is not None:
            self.programs[process].do("release", allocation.names[process].pop())

    @rule(process=PROCESSES, draw=st.integers(0, 99))
    def map_and_unmap(self, process: int, draw: int) -> None:
        allocation = self.pick(draw, kind="physical", holder=process)
        if allocation is None:
            return
        program = self.programs[process]
        address = program.do("reserve", allocation.size)
        program.do("map", address, allocation.size, allocation.names[process][0])
        program.do("access", address, allocation.size)
        program.do("fill", address, 1, allocation.size)
        program.do("release", allocation.names[process][0])
        allocation.names[process][0] = program.do("retain", address)
        program.do("unmap", address, allocation.size)
        program.do("unreserve", address, allocation.size)

    @rule(process=PROCESSES, exportable=st.booleans())
    def make_pool(self, process: int, exportable: bool) -> None:
        self.pools[process][self.programs[process].do("pool_make", exportable=exportable)] = {}

    @rule(process=PROCESSES, draw=st.integers(0, 99), size=st.integers(1, 3 * UNIT))
    def allocate_from_pool(self, process: int, draw: int, size: int) -> None:
        if self.pools[process]:
            pool = list(self.pools[process])[draw % len(self.pools[process])]
            self.pools[process][pool][self.programs[process].do("pool_alloc", pool, size)] = rounded(size, ROUNDING)

    @rule(process=PROCESSES, draw=st.integers(0, 99))
    def free_into_pool(self, process: int, draw: int) -> None:
        out = [(pool, pointer) for pool, pointers in self.pools[process].items() for pointer in pointers]
        if out:
            pool, pointer = out[draw % len(out)]
            self.programs[process].do("free_async", pointer)
            self.programs[process].do("sync")
            del self.pools[process][pool][pointer]

    @rule(process=PROCESSES, draw=st.integers(0, 99))
    def destroy_pool(self, process: int, draw: int) -> None:
        empty = [pool for pool, pointers in self.pools[process].items() if not pointers]
        if empty:
            pool = empty[draw % len(empty)]
            self.programs[process].do("pool_destroy", pool)
            del self.pools[process][pool]

    @precondition(lambda self: len(self.shared) > 2)
    @rule(process=PROCESSES)
    def kill(self, process: int) -> None:
        self.programs[process].kill()
        self.programs[process] = self.program(process)
        self.pools[process] = {}
        for allocation in self.shared:
            allocation.names[process].clear()
            allocation.maker = -1 if allocation.maker == process else allocation.maker
            allocation.owner = (
                1 - process if allocation.owner == process else allocation.owner
            )  # the process that still holds it is charged now

    @invariant()
    def each_owes_what_it_holds(self) -> None:
        self.shared = [allocation for allocation in self.shared if allocation.held]
        pools = [
            sum(rounded(sum(held.values()), UNIT) for held in self.pools[process].values()) for process in range(2)
        ]
        owed = [
            pools[process] + sum(allocation.size for allocation in self.shared if allocation.owner == process)
            for process in range(2)
        ]
        counters = manage.inspect(self.directory, 0)
        counted = {client["pid"]: client["counters"]["memory_bytes"] for client in counters["clients"]}
        # A process that is not a client yet is charged nothing.
        assert [counted.get(program.process.pid, 0) for program in self.programs] == owed
        assert counters["memory_bytes"] - counters["memory_free_bytes"] == sum(owed)
        for process in range(2):
            now = pools[process] + sum(allocation.size for allocation in self.shared if allocation.account == process)
            self.peaks[process] = max(self.peaks[process], now)
            assert self.account(counters, process) == (now, self.peaks[process])

    def account(self, counters: dict[str, Any], process: int) -> tuple[int, int]:
        name = f"run-{self.run_number}/{process}"
        found = [account for account in counters["accounts"] if account["account"] == name]
        # Before its first process is a client, there is no account.
        return (found[0]["memory_bytes"], found[0]["memory_peak_bytes"]) if found else (0, 0)

    def teardown(self) -> None:
        for program in self.programs:
            program.kill()
        counters = manage.inspect(self.directory, 0)
        assert counters["memory_bytes"] == counters["memory_free_bytes"]
        assert [self.account(counters, process) for process in range(2)] == [(0, peak) for peak in self.peaks]
        assert counters["clients"] == []


@contextmanager
def one_gpu() -> Iterator[Path]:
    with TemporaryDirectory() as temporary:
        directory = Path(temporary) / "gpu"
        manage.create(directory, "v100", 1)
        try:
            yield directory
        finally:
            manage.destroy(directory)


def test_memory_counters_are_correct_after_any_sequence_of_calls() -> None:
    with one_gpu() as directory:
        machine = type("Machine", (Memory,), {"directory": directory})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=8,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            ),
        )
