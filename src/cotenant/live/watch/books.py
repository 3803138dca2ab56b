"""Does the ledger of a device say what the device itself says? Lines of the dead end here, and the living are measured.

A line is freed only when its process is gone *and* the device lists it no more: memory that the ledger calls free can
then be had. The order of the looks makes that sound: who was dead before the device was asked cannot come back after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cotenant.domain.event import Event, MemoryWanted, TenantFaulted
from cotenant.domain.fault import Source
from cotenant.domain.instant import SECOND_NS, Instant
from cotenant.domain.ledger import LedgerLine
from cotenant.live.ledger import LiveLedgers
from cotenant.live.watch.kin import Kin, is_vague

_AGAIN_NS: Final = SECOND_NS
_DENIED_AGAIN_NS: Final = 60 * SECOND_NS
_OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
_MOST_BYTES: Final = 1 << 50
"""No device has more. A tenant may scribble any word into its lines; what goes on from here can be added up."""
_MOST_CODE: Final = (1 << 31) - 1
_CONTEXTS_KEPT: Final = 15
_MOST_CONTEXTS: Final = 1 << 10


class Books:
    """The lines of one device, from look to look."""

    def __init__(self, gpu: int, ledgers: LiveLedgers, kin: Kin, post: Callable[[Event], None]) -> None:
        """Tell of faults and of memory that is wanted through `post`."""
        self._gpu = gpu
        self._ledgers = ledgers
        self._kin = kin
        self._post = post
        self._lines: Sequence[LedgerLine] = ()
        self._dead: frozenset[int] = frozenset()
        self._told_faults: dict[int, int] = {}
        self._told_wants: dict[int, Instant] = {}
        self._told_denials: dict[int, int] = {}  # by process, how many it had
        self._denied_ns: dict[tuple[int, int], Instant] = {}  # by tenant, when that was told
        self._contexts: deque[int] = deque(maxlen=_CONTEXTS_KEPT)
        self._is_context_known = False

    @property
    def is_empty(self) -> bool:
        """Whether no process had a line at the last reading."""
        return not self._lines

    def read(self, seats: Mapping[int, int], now: Instant) -> bool:
        """Look at every line; whether the device is to be asked. `seats` are the generations by slot."""
        self._lines = self._ledgers.lines(self._gpu)
        self._dead = frozenset(line.owner for line in self._lines if not self._is_alive(line, seats))
        self._tell_faults(seats)
        self._tell_wants(seats, now)
        self._tell_denials(seats, now)
        return bool(self._dead) or any(_is_unmeasured(line) for line in self._lines)

    def _is_alive(self, line: LedgerLine, seats: Mapping[int, int]) -> bool:
        """Of a process that could not tell who it is: for as long as its tenant is there."""
        if is_vague(line.owner):
            return seats.get(line.slot) == line.generation
        return self._kin.is_alive(line.owner)

    def settle(self, held_bytes: Mapping[int, int | None] | None) -> None:
        """Take in what the device said after the reading, by process; None: there is no device that could say."""
        cleared = [line for line in self._lines if line.owner in self._dead and self._is_over(line, held_bytes)]
        for line in cleared:
            self._ledgers.clear(self._gpu, line.slot, line.line, line.owner)
            self._kin.let_go(line.owner)
        if held_bytes is not None:
            for line in self._lines:
                if line.owner not in self._dead:
                    self._measure(line, held_bytes)
        for slot in dict.fromkeys(line.slot for line in (*cleared, *self._lines)):
            self._ledgers.sweep(self._gpu, slot)
        gone = {line.owner for line in cleared}
        self._lines = [line for line in self._lines if line.owner not in gone]

    def expect(self, context_bytes: int) -> None:
        """Take what the node itself found a context to take, from here on; 0: it could not find out."""
        if 0 < context_bytes < _MOST_BYTES:
            self._is_context_known = True
            self._ledgers.learn_context(self._gpu, context_bytes)

    def owners(self, slot: int) -> list[int]:
        """The processes of a tenant that use the device."""
        return [line.owner for line in self._lines if line.slot == slot and line.owner not in self._dead]

    def had(self, slot: int, pid: int) -> bool:
        """Whether a process that is gone was one of a tenant's, and its line is not cleared yet."""
        gone = (line.owner for line in self._lines if line.slot == slot and line.owner in self._dead)
        return any(self._kin.was(owner, pid) for owner in gone)

    def held(self, slot: int) -> int:
        """What a tenant holds, in bytes."""
        return min(self._ledgers.held(self._gpu, slot), _MOST_BYTES)

    def _is_over(self, line: LedgerLine, held_bytes: Mapping[int, int | None] | None) -> bool:
        return held_bytes is None or not any(self._kin.could_be(line.owner, pid) for pid in held_bytes)

    def _measure(self, line: LedgerLine, held_bytes: Mapping[int, int | None]) -> None:
        pid = self._kin.find(line.owner)
        if pid is None:
            return
        held = held_bytes.get(pid, 0)  # one that is not listed has no context, and holds nothing
        if held is None:
            return
        taken = self._ledgers.measured(self._gpu, line, held)
        beyond_bytes = held - line.booked_bytes - line.code_bytes
        is_of_use = taken and not line.managed_bytes and not self._is_context_known
        if is_of_use and 0 < line.contexts <= min(beyond_bytes, _MOST_CONTEXTS):  # its words may be anything
            self._learn(beyond_bytes // line.contexts, is_sure=not line.booked_bytes)

    def _learn(self, context_bytes: int, *, is_sure: bool) -> None:
        """From one that holds nothing else; until there was such a one, from any: what it booked may be gone already.

        The least counts: whoever was left memory by somebody who died seems to have larger contexts.
        """
        if is_sure:
            self._contexts.append(context_bytes)
        if is_sure or not self._contexts:
            self._ledgers.learn_context(self._gpu, min(self._contexts, default=context_bytes))

    def _tell_faults(self, seats: Mapping[int, int]) -> None:
        """Once for each process: what it cannot survive does not get worse."""
        self._told_faults = {line.owner: line.fault for line in self._lines if line.owner in self._told_faults}
        for line in self._lines:
            if line.fault and line.owner not in self._told_faults and seats.get(line.slot) == line.generation:
                self._told_faults[line.owner] = line.fault
                code = min(line.fault, _MOST_CODE)
                self._post(TenantFaulted(line.slot, line.generation, Source.CUDA.value, code))

    def _tell_wants(self, seats: Mapping[int, int], now: Instant) -> None:
        """At once, and again while it lasts: room may have been made and taken by somebody else."""
        wanted: dict[int, int] = {}
        for line in self._lines:
            if line.wanted_bytes and line.owner not in self._dead and seats.get(line.slot) == line.generation:
                wanted[line.slot] = max(wanted.get(line.slot, 0), min(line.wanted_bytes, _MOST_BYTES))
        self._told_wants = {slot: at for slot, at in self._told_wants.items() if slot in wanted}
        for slot, wanted_bytes in wanted.items():
            if now - self._told_wants.get(slot, now - _AGAIN_NS) >= _AGAIN_NS:
                self._told_wants[slot] = now
                held = tuple((other, self.held(other)) for other in sorted(seats))
                self._post(MemoryWanted(slot, seats[slot], wanted_bytes, held))

    def _tell_denials(self, seats: Mapping[int, int], now: Instant) -> None:
        """The first, and then not again for a while: who asks in vain asks often, and its account counts them all."""
        self._told_denials = {one.owner: self._told_denials.get(one.owner, 0) for one in self._lines}
        self._denied_ns = {(slot, held): at for (slot, held), at in self._denied_ns.items() if seats.get(slot) == held}
        for line in self._lines:
            tenant = line.slot, line.generation
            if line.denied <= self._told_denials[line.owner] or seats.get(line.slot) != line.generation:
                continue
            if now - self._denied_ns.get(tenant, now - _DENIED_AGAIN_NS) >= _DENIED_AGAIN_NS:
                self._told_denials[line.owner] = line.denied
                self._denied_ns[tenant] = now
                self._post(TenantFaulted(*tenant, Source.CUDA.value, _OUT_OF_MEMORY))


def _is_unmeasured(line: LedgerLine) -> bool:
    return line.begun == line.ended and line.measured_version != line.own_version + 1
