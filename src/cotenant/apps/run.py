"""Wires `cotenant run`: join the node, run the program, start it again where that was asked for, and leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cotenant.apps.attend import Attendant, Ended
from cotenant.apps.hook import Hooked
from cotenant.apps.membership import Membership, RefusedError, StoppedError, join, wait_for
from cotenant.apps.suspend import Mover
from cotenant.domain.gate import Limit
from cotenant.domain.gpu import WHOLE_PPM
from cotenant.domain.instant import SECOND_NS, Duration
from cotenant.domain.protect import OnPressure
from cotenant.domain.tenant import COMMAND_LIMIT, ENDING_LIMIT, Kind, TenantSpec
from cotenant.errors import WorldError
from cotenant.format import wire
from cotenant.format.config import RunConfig
from cotenant.format.outcome import Doing, Outcome
from cotenant.format.quantity import round_duration
from cotenant.live.clock import monotonic_ns
from cotenant.live.directory import Places
from cotenant.live.gate import GATE_VARIABLE, HEADROOM_VARIABLE, roster_of
from cotenant.live.guard import Child
from cotenant.live.hook.door import LEDGER_VARIABLE, find_driver
from cotenant.live.page import SLOT_VARIABLE, TERMS_VARIABLE, read_page, slot_text
from cotenant.live.process import Signals, describe_ending, exec_failure_code
from cotenant.machine.ending import AT_ONCE_NS
from cotenant.machine.restart import Restarts
from cotenant.policy.limit.share import offline_percent, share_of
from cotenant.policy.protect.backoff import delay_ns

DEFAULT_PRIORITY: Final = {Kind.ONLINE: 2, Kind.OFFLINE: 7}
_MPS_PRIORITY: Final = "CUDA_MPS_CLIENT_PRIORITY"
_MPS_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_BELOW_NORMAL: Final = "1"
_NO_GPU: Final = "the node knows no GPU: memory and share are noted, not reserved; start it with --gpu NAME=MEMORY"
_JOIN_CAP_NS: Final = 30 * SECOND_NS


def spec_of(config: RunConfig, command: Sequence[str], gpu: str = "") -> TenantSpec:
    """What the tenant asks for; what is known of its task is not in it yet."""
    text = _wire_text(" ".join(command))
    priority = DEFAULT_PRIORITY[config.kind] if config.priority is None else config.priority
    return TenantSpec(
        kind=config.kind,
        priority=priority,
        name=config.name,
        slo_ns=int(config.slo),
        memory_bytes=int(config.memory),
        share_ppm=int(config.share),
        task=(_wire_text(config.task) or text)[:COMMAND_LIMIT],
        command=text[:COMMAND_LIMIT],
        gpu=gpu,
        on_pressure=OnPressure(config.on_pressure),
        grace_ns=int(config.grace) or AT_ONCE_NS,
        limit=Limit(config.limit),
    )


def _wire_text(text: str) -> str:
    """Arguments may be any bytes; the wire carries text, so what is none is told as a question mark."""
    return text.encode("utf-8", "replace").decode()


class Tenancy:
    """A program's time as a tenant, from its first start to its last end."""

    def __init__(
        self,
        places: Places,
        spec: TenantSpec,
        config: RunConfig,
        command: Sequence[str],
        variables: Mapping[str, str],
        arguments: Sequence[str],
        hooked: Hooked | None,
        say: Callable[[str], None],
    ) -> None:
        """`variables` are added to the program's environment, `arguments` are those of a node that must be started."""
        self.outcome: Outcome | None = None
        """How it ended, once it has."""
        self._places = places
        self._spec = spec
        self._config = config
        self._command = command
        self._variables = variables
        self._arguments = arguments if config.start_node == "yes" else None
        self._hooked = hooked
        self._say = say
        # Now, before others can see a tenant: it takes a process to find it.
        self._driver = hooked.driver if hooked is not None else find_driver({**os.environ, **variables})
        self._restarts = Restarts(config.restart, int(config.restart_delay), int(config.restart_well))

    def run(self) -> int:
        """Run the program as a tenant, as often as it takes; returns the exit code of its last end."""
        membership = self._join(None)
        if membership.terms.gpu < 0 and (self._spec.memory_bytes or self._spec.share_ppm):
            self._say(_NO_GPU)
        signals = Signals()
        try:
            while True:
                code, is_evicted = self._stay(membership, signals)
                if not is_evicted:
                    return code
                membership.close()
                try:
                    membership = self._join(signals)
                except StoppedError as error:
                    self._say(str(error))
                    return code
        finally:
            signals.close()

    def _stay(self, membership: Membership, signals: Signals) -> tuple[int, bool]:
        """From a join to the leave: how it ended, and whether it may join anew because the node made it go."""
        environ = {**os.environ, **self._variables, **membership.environment}
        mover = Mover(self._driver, environ)
        attendant = Attendant(membership, signals, self._hooked, mover, int(self._config.grace))
        while True:
            started_ns = monotonic_ns()
            try:
                child = self._start(membership, signals)
            except OSError as error:
                membership.leave(f"could not start: {error.strerror}")
                why = f"cannot run {self._command[0]!r}: {error.strerror}"
                self._say(why)
                self.outcome = Outcome(exec_failure_code(error), Doing.OWN, why)
                return exec_failure_code(error), False
            ended = attendant.attend(child)
            told = describe_ending(ended.code) + self._unseen()
            stop: Ended | None = ended
            if not ended.is_asked and ended.signal is None:
                stop = self._wait_to_restart(attendant, ended.code, told, monotonic_ns() - started_ns)
            if stop is not None:
                self.outcome = _outcome_of(ended.code, stop, told)
                membership.leave(told)
                return ended.code, self._may_return(stop)
            membership.tell(wire.Restarted(told[:ENDING_LIMIT], self._restarts.total))

    def _wait_to_restart(self, attendant: Attendant, code: int, told: str, ran_ns: Duration) -> Ended | None:
        """None when it is time to start the program again; else why not."""
        wait_ns = self._restarts.after(code, ran_ns)
        if wait_ns is None:
            return Ended(code, is_asked=False, signal=None)
        self._say(f"the program ended ({told}); starting it again in {round_duration(wait_ns)}")
        return attendant.rest(monotonic_ns() + wait_ns)

    def _may_return(self, ended: Ended) -> bool:
        return self._restarts.is_on and not ended.is_asked and ended.signal is not None and ended.signal.again

    def _start(self, membership: Membership, signals: Signals) -> Child:
        environ = {
            **_behind_others(self._spec.kind),
            **_beside_online(membership),
            **_within_its_share(membership),
            **os.environ,
            **self._variables,
            **membership.environment,
            **_on_its_device(membership, self._variables),
            TERMS_VARIABLE: str(membership.page),
            SLOT_VARIABLE: slot_text(membership.terms),
            GATE_VARIABLE: ",".join(map(str, membership.gate)),
            LEDGER_VARIABLE: ",".join(map(str, membership.ledger)),
            "COTENANT_TENANT": membership.tenant,
        }
        if self._hooked is not None:
            environ |= self._hooked.variables(environ, membership.page, membership.gate, membership.ledger)
        return Child(self._command, environ, membership.descriptors(), signals.before)

    def _unseen(self) -> str:
        return "; the hook saw nothing of its GPU use" if self._hooked is not None and self._hooked.unseen else ""

    def _join(self, signals: Signals | None) -> Membership:
        """Become a tenant; one that is to be started again waits where the node says that waiting helps.

        One that had its place before, which is one whose signals are held back, waits whatever is against it.
        """
        patient = signals is not None
        complaint = ""
        for tries in range(1, 1 << 62):
            try:
                return join(self._places, self._spec, self._arguments, self._say, signals)
            except RefusedError as error:
                asked_ns, failed = error.reject.retry_after_ns, error.what
                if not patient and not (self._restarts.is_on and asked_ns):
                    raise
            except StoppedError:
                raise
            except WorldError as error:
                asked_ns, failed = 0, str(error)
                if not patient:
                    raise
            wait_ns = max(asked_ns, delay_ns(tries, int(self._config.restart_delay), _JOIN_CAP_NS))
            if failed != complaint:
                complaint = failed
                self._say(f"{complaint}; waiting for it")
            wait_for(-1, wait_ns / 1e9, signals)
        raise AssertionError("nobody lives that long")


def _outcome_of(code: int, stop: Ended, told: str) -> Outcome:
    if stop.is_asked:
        return Outcome(code, Doing.ASKED, told)
    if stop.signal is not None:
        return Outcome(code, Doing.NODE, stop.signal.why)
    return Outcome(code, Doing.OWN, told)


def _on_its_device(membership: Membership, variables: Mapping[str, str]) -> dict[str, str]:
    """Show the program the device at whose gate it sits, and no other, unless its environment made the choice."""
    if _VISIBLE in os.environ and _VISIBLE not in variables:
        return {}
    device = membership.device()
    return {} if device is None else {_VISIBLE: device.visible(membership.terms.gpu)}


def _within_its_share(membership: Membership) -> dict[str, str]:
    """Under MPS one that is never above its share gets no more SMs than that, as both are now."""
    terms = read_page(membership.page) or membership.terms
    share_ppm, is_static = terms.share_ppm, membership.spec.limit is Limit.STATIC
    seats = roster_of(membership.gate[0]).seats if membership.gate else ()
    for seat in seats:
        if (seat.slot, seat.generation) == (terms.slot, terms.generation):  # what was asked for may have been changed
            share_ppm, is_static = seat.limit_ppm, seat.static
    if not is_static or not 0 < share_ppm < WHOLE_PPM:
        return {}
    return {_MPS_PERCENTAGE: str(-(-share_ppm * 100 // WHOLE_PPM))}  # rounded up: the gate sees to the rest


def _beside_online(membership: Membership) -> dict[str, str]:
    """Under MPS, where the node wants it, an offline program gets the SMs that online leaves as it starts."""
    headroom_ppm = membership.environment.get(HEADROOM_VARIABLE, "")
    if not headroom_ppm.isdigit() or not membership.gate:
        return {}
    rules = roster_of(membership.gate[0])
    if not any(seat.online for seat in rules.seats):
        return {}
    return {_MPS_PERCENTAGE: str(offline_percent(share_of(rules.delay_ppm), int(headroom_ppm)))}


def _behind_others(kind: Kind) -> dict[str, str]:
    """Under MPS an offline tenant's blocks come after all others': what runs gives way block by block."""
    return {_MPS_PRIORITY: _BELOW_NORMAL} if kind is Kind.OFFLINE else {}
