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
BOOKED = 512
WHO = st.integers(0, 1)
STORIES = count()


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass
class Shared:
    """Memory that either process may hold: under which name, and how often."""

    size: int
    owner: int  # in whose books it is
    kind: str  # "plain" or "physical"
    maker: int = -1  # who can free it or hand it on; -1: was killed
    account: int = -1  # of who made it, the process that holds it
    names: list[list[int]] = field(default_factory=lambda: [[], []])

    def __post_init__(self) -> None:
        self.maker = self.account = self.owner

    @property
    def held(self) -> bool:
        return any(self.names)


class Memory(RuleBasedStateMachine):
    """The model: who owes what. The processes: the real thing."""

    directory: Path

    def __init__(self) -> None:
        super().__init__()
        self.story = next(STORIES)
        self.peaks = [0, 0]
        self.puppets = [self.puppet(who) for who in range(2)]
        self.shared: list[Shared] = []
        self.pools: list[dict[int, dict[int, int]]] = [{}, {}]  # by process and pool: its allocations and their bytes

    def puppet(self, who: int) -> ScriptedProgram:
        return ScriptedProgram(self.directory, SOFTGPU_ACCOUNT=f"story-{self.story}/{who}")

    def pick(self, draw: int, *, kind: str, holder: int) -> Shared | None:
        choice = [one for one in self.shared if one.kind == kind and one.names[holder]]
        return choice[draw % len(choice)] if choice else None

    @rule(who=WHO, size=st.integers(1, 3 * UNIT))
    def allocate(self, who: int, size: int) -> None:
        pointer = self.puppets[who].do("alloc", size)
        self.shared.append(Shared(rounded(size, BOOKED), who, "plain"))
        self.shared[-1].names[who].append(pointer)

    @rule(who=WHO, units=st.integers(1, 3))
    def create(self, who: int, units: int) -> None:
        handle = self.puppets[who].do("create", units * UNIT)
        self.shared.append(Shared(units * UNIT, who, "physical"))
        self.shared[-1].names[who].append(handle)

    @rule(who=WHO, draw=st.integers(0, 99))
    def open_or_close(self, who: int, draw: int) -> None:
        opened = self.pick(draw, kind="plain", holder=who)
        if opened is not None and opened.maker != who:
            self.puppets[who].do("ipc_close", opened.names[who].pop())
            return
        one = self.pick(draw, kind="plain", holder=1 - who)
        if one is not None and one.maker == 1 - who:
            handle = self.puppets[1 - who].do("ipc_get", one.names[1 - who][0])
            one.names[who].append(self.puppets[who].do("ipc_open", handle))

    @rule(who=WHO, draw=st.integers(0, 99))
    def free(self, who: int, draw: int) -> None:
        one = self.pick(draw, kind="plain", holder=who)
        if one is not None and one.maker == who:
            self.puppets[who].do("free", one.names[who].pop())

    @rule(who=WHO, draw=st.integers(0, 99))
    def hand_over(self, who: int, draw: int) -> None:
        one = self.pick(draw, kind="physical", holder=who)
        if one is None:
            return
        descriptor = self.puppets[who].do("export", one.names[who][0])
        one.names[1 - who].append(self.puppets[1 - who].do("import", descriptor=descriptor))
        os.close(descriptor)

    @rule(who=WHO, draw=st.integers(0, 99))
    def release(self, who: int, draw: int) -> None:
        one = self.pick(draw, kind="physical", holder=who)
        if one is not None:
            self.puppets[who].do("release", one.names[who].pop())

    @rule(who=WHO, draw=st.integers(0, 99))
    def map_and_unmap(self, who: int, draw: int) -> None:
        one = self.pick(draw, kind="physical", holder=who)
        if one is None:
            return
        puppet = self.puppets[who]
        address = puppet.do("reserve", one.size)
        puppet.do("map", address, one.size, one.names[who][0])
        puppet.do("access", address, one.size)
        puppet.do("fill", address, 1, one.size)
        puppet.do("release", one.names[who][0])
        one.names[who][0] = puppet.do("retain", address)
        puppet.do("unmap", address, one.size)
        puppet.do("unreserve", address, one.size)

    @rule(who=WHO, exportable=st.booleans())
    def make_pool(self, who: int, exportable: bool) -> None:
        self.pools[who][self.puppets[who].do("pool_make", exportable=exportable)] = {}

    @rule(who=WHO, draw=st.integers(0, 99), size=st.integers(1, 3 * UNIT))
    def allocate_from_pool(self, who: int, draw: int, size: int) -> None:
        if self.pools[who]:
            pool = list(self.pools[who])[draw % len(self.pools[who])]
            self.pools[who][pool][self.puppets[who].do("pool_alloc", pool, size)] = rounded(size, BOOKED)

    @rule(who=WHO, draw=st.integers(0, 99))
    def free_into_pool(self, who: int, draw: int) -> None:
        out = [(pool, pointer) for pool, pointers in self.pools[who].items() for pointer in pointers]
        if out:
            pool, pointer = out[draw % len(out)]
            self.puppets[who].do("free_async", pointer)
            self.puppets[who].do("sync")
            del self.pools[who][pool][pointer]

    @rule(who=WHO, draw=st.integers(0, 99))
    def destroy_pool(self, who: int, draw: int) -> None:
        empty = [pool for pool, pointers in self.pools[who].items() if not pointers]
        if empty:
            pool = empty[draw % len(empty)]
            self.puppets[who].do("pool_destroy", pool)
            del self.pools[who][pool]

    @precondition(lambda self: len(self.shared) > 2)
    @rule(who=WHO)
    def kill(self, who: int) -> None:
        self.puppets[who].kill()
        self.puppets[who] = self.puppet(who)
        self.pools[who] = {}
        for one in self.shared:
            one.names[who].clear()
            one.maker = -1 if one.maker == who else one.maker
            one.owner = 1 - who if one.owner == who else one.owner  # who still holds it owes it now

    @invariant()
    def each_owes_what_it_holds(self) -> None:
        self.shared = [one for one in self.shared if one.held]
        pools = [sum(rounded(sum(held.values()), UNIT) for held in self.pools[who].values()) for who in range(2)]
        owed = [pools[who] + sum(one.size for one in self.shared if one.owner == who) for who in range(2)]
        counters = manage.inspect(self.directory, 0)
        counted = {client["pid"]: client["counters"]["memory_bytes"] for client in counters["clients"]}
        # A process that has not come so far as to be a client owes nothing.
        assert [counted.get(puppet.process.pid, 0) for puppet in self.puppets] == owed
        assert counters["memory_bytes"] - counters["memory_free_bytes"] == sum(owed)
        for who in range(2):
            now = pools[who] + sum(one.size for one in self.shared if one.account == who)
            self.peaks[who] = max(self.peaks[who], now)
            assert self.account(counters, who) == (now, self.peaks[who])

    def account(self, counters: dict[str, Any], who: int) -> tuple[int, int]:
        name = f"story-{self.story}/{who}"
        found = [account for account in counters["accounts"] if account["account"] == name]
        # Before its first process has come so far there is none.
        return (found[0]["memory_bytes"], found[0]["memory_peak_bytes"]) if found else (0, 0)

    def teardown(self) -> None:
        for puppet in self.puppets:
            puppet.kill()
        counters = manage.inspect(self.directory, 0)
        assert counters["memory_bytes"] == counters["memory_free_bytes"]
        assert [self.account(counters, who) for who in range(2)] == [(0, peak) for peak in self.peaks]
        assert counters["clients"] == []


@contextmanager
def one_gpu() -> Iterator[Path]:
    with TemporaryDirectory() as place:
        directory = Path(place) / "gpu"
        manage.create(directory, "v100", 1)
        try:
            yield directory
        finally:
            manage.destroy(directory)


def test_counters_are_right_after_any_sequence() -> None:
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
