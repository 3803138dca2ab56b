"""`cotenant run`: join the node, run the program, restart it if configured, and leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cotenant.errors import WorldError
from cotenant.gate.rules import Limit
from cotenant.hook.shim import find_driver
from cotenant.node import wire
from cotenant.node.client.attend import ProgramEnd, ProgramSupervisor
from cotenant.node.client.guard import Child
from cotenant.node.client.hook_setup import HookedProgram
from cotenant.node.client.membership import Membership, RefusedError, StoppedError, join, wait_for
from cotenant.node.client.outcome import EndedBy, RunOutcome
from cotenant.node.client.suspend import MemoryMover
from cotenant.node.config.file import RunConfig
from cotenant.node.directories import Directories
from cotenant.node.model.protection import OnPressure
from cotenant.node.model.tenant import COMMAND_LIMIT, DEFAULT_PRIORITY, ENDING_LIMIT, TenantSpec
from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.node.state.program_exit import AT_ONCE_NS
from cotenant.node.state.restart import RestartPolicy
from cotenant.runner.clock import monotonic_ns
from cotenant.runner.process import Signals, describe_exit, exec_failure_code
from cotenant.units.instant import SECOND_NS, Duration
from cotenant.units.text import round_duration

_MPS_VARIABLES: Final = ("CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_NO_GPU: Final = "the node has no GPU, so memory and share are not reserved; start it with --gpu NAME=MEMORY"
_JOIN_BACKOFF_CAP_NS: Final = 30 * SECOND_NS


def spec_of(config: RunConfig, command: Sequence[str], gpu: str = "") -> TenantSpec:
    """Return the spec of the tenant, without the recorded use of its task."""
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
        gpu_count=config.gpus,
        on_pressure=OnPressure(config.on_pressure),
        grace_ns=int(config.grace) or AT_ONCE_NS,
        limit=Limit(config.limit),
    )


def _wire_text(text: str) -> str:
    """Replace each byte that is not text with a question mark: arguments may be any bytes, the wire carries text."""
    return text.encode("utf-8", "replace").decode()


class TenantRun:
    """A program as a tenant, from its first start to its last end."""

    def __init__(
        self,
        directories: Directories,
        spec: TenantSpec,
        config: RunConfig,
        command: Sequence[str],
        variables: Mapping[str, str],
        arguments: Sequence[str],
        hooked: HookedProgram | None,
        report: Callable[[str], None],
    ) -> None:
        """`variables` are added to the program's environment; `arguments` are passed to a node that is started."""
        self.outcome: RunOutcome | None = None
        """The outcome, after the end."""
        self._directories = directories
        self._spec = spec
        self._config = config
        self._command = command
        self._variables = variables
        self._arguments = arguments if config.start_node == "yes" else None
        self._hooked = hooked
        self._report = report
        # Searched now, before the tenant is visible to others, because the search starts a process.
        self._driver = hooked.driver if hooked is not None else find_driver({**os.environ, **variables})
        self._restarts = RestartPolicy(config.restart, int(config.restart_delay), int(config.restart_well))

    def run(self) -> int:
        """Run the program as a tenant, with restarts; return the exit code of the last run."""
        membership = self._join(None)
        if membership.grant.gpu < 0 and (self._spec.memory_bytes or self._spec.share_ppm):
            self._report(_NO_GPU)
        signals = Signals()
        try:
            while True:
                code, is_evicted = self._run_once_joined(membership, signals)
                if not is_evicted:
                    return code
                try:
                    membership = self._join(signals)
                except StoppedError as error:
                    self._report(str(error))
                    return code
        finally:
            signals.close()

    def _run_once_joined(self, membership: Membership, signals: Signals) -> tuple[int, bool]:
        """Run the program from join to leave; return the exit code, and whether an evicted program may join again."""
        environ = self._environment(membership)
        mover = MemoryMover(self._driver, environ)
        supervisor = ProgramSupervisor(membership, signals, self._hooked, mover, int(self._config.grace))
        while True:
            started_ns = monotonic_ns()
            try:
                child = self._start(membership, signals)
            except OSError as error:
                membership.leave(f"could not start: {error.strerror}")
                why = f"cannot run {self._command[0]!r}: {error.strerror}"
                self._report(why)
                self.outcome = RunOutcome(exec_failure_code(error), EndedBy.OWN, why)
                return exec_failure_code(error), False
            ended = supervisor.supervise(child)
            ending = describe_exit(ended.code) + self._hook_warning()
            stop: ProgramEnd | None = ended
            if not ended.is_asked and ended.signal is None:
                stop = self._wait_to_restart(supervisor, ended.code, ending, monotonic_ns() - started_ns)
            if stop is not None:
                self.outcome = _outcome_of(ended.code, stop, ending)
                membership.leave(ending)
                return ended.code, self._may_join_again(stop)
            membership.send(wire.RestartReport(ending[:ENDING_LIMIT], self._restarts.total))

    def _wait_to_restart(
        self, supervisor: ProgramSupervisor, code: int, ending: str, ran_ns: Duration
    ) -> ProgramEnd | None:
        """Wait for the restart delay; return None if the program is to be restarted, else the end."""
        wait_ns = self._restarts.after(code, ran_ns)
        if wait_ns is None:
            return ProgramEnd(code, is_asked=False, signal=None)
        self._report(f"the program ended ({ending}); starting it again in {round_duration(wait_ns)}")
        return supervisor.wait_until(monotonic_ns() + wait_ns)

    def _may_join_again(self, ended: ProgramEnd) -> bool:
        return self._restarts.is_on and not ended.is_asked and ended.signal is not None and ended.signal.may_restart

    def _start(self, membership: Membership, signals: Signals) -> Child:
        membership.pin_device()
        environ = self._environment(membership)
        if self._hooked is not None:
            environ |= self._hooked.variables(environ)
        return Child(self._command, environ, signals.before)

    def _environment(self, membership: Membership) -> dict[str, str]:
        """Return the program's environment.

        What the user set about MPS stays, and the device that the user made visible. The hook asks the node for the
        limits of MPS when the program begins to use the device, so they are set here only without it.
        """
        node = dict(membership.environment)
        defaults: dict[str, str] = {name: node.pop(name) for name in _MPS_VARIABLES if name in node}
        if _VISIBLE_DEVICES in os.environ and _VISIBLE_DEVICES not in self._variables:
            node.pop(_VISIBLE_DEVICES, None)
        return {
            **({} if self._hooked is not None else defaults),
            **os.environ,
            **self._variables,
            **self._gang_variables(),
            **node,
            "COTENANT_SOCKET": str(self._directories.tenant_socket),
        }

    def _gang_variables(self) -> dict[str, str]:
        """Return the variables that tell the hook of which job this program is a rank."""
        config = self._config
        return {"COTENANT_GANG": config.gang, "COTENANT_RANKS": str(config.ranks)} if config.gang else {}

    def _hook_warning(self) -> str:
        return "; the hook saw nothing of its GPU use" if self._hooked is not None and self._hooked.has_unhooked else ""

    def _join(self, signals: Signals | None) -> Membership:
        """Join the node. A program with restarts retries if the node says when to try again.

        A program that had a slot before (`signals` is given) retries after every refusal.
        """
        always_retry = signals is not None
        last_failure = ""
        for tries in range(1, 1 << 62):
            try:
                return join(self._directories, self._spec, self._arguments, self._report, signals)
            except RefusedError as error:
                retry_after_ns, failure = error.reject.retry_after_ns, error.message
                if not always_retry and not (self._restarts.is_on and retry_after_ns):
                    raise
            except StoppedError:
                raise
            except WorldError as error:
                retry_after_ns, failure = 0, str(error)
                if not always_retry:
                    raise
            wait_ns = max(retry_after_ns, delay_ns(tries, int(self._config.restart_delay), _JOIN_BACKOFF_CAP_NS))
            if failure != last_failure:
                last_failure = failure
                self._report(f"{failure}; retrying")
            wait_for(-1, wait_ns / 1e9, signals)
        raise AssertionError("unreachable")


def _outcome_of(code: int, stop: ProgramEnd, ending: str) -> RunOutcome:
    if stop.is_asked:
        return RunOutcome(code, EndedBy.ASKED, ending)
    if stop.signal is not None:
        return RunOutcome(code, EndedBy.NODE, stop.signal.why)
    return RunOutcome(code, EndedBy.OWN, ending)
