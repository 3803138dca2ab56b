"""Requests that the controller answers without its state machine: certificates, tokens and lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from cotenant.cluster import wire
from cotenant.cluster.daemon.authority import Authority, key_of
from cotenant.cluster.daemon.identity import Holder
from cotenant.cluster.daemon.registry import MOST_COUNTING, CertificateRegistry, too_many
from cotenant.cluster.model.cluster import GpuCondition, JobReport, JobSpec, NodeView
from cotenant.cluster.model.event import NodeReport
from cotenant.cluster.state.cluster import ClusterMachine
from cotenant.cluster.state.reasons import Reasons
from cotenant.cluster.wire import Role
from cotenant.node.model.admission import Reason, Reject
from cotenant.runner.clock import unix_ns
from cotenant.runner.ports import Clock
from cotenant.units.instant import Instant

LOOKED_AT: Final = 5000
"""Jobs that are looked at for one page, so that no list holds up the loop for long."""
_DAYS: Final = {Role.NODE: 30.0, Role.USER: 365.0, Role.OPERATOR: 365.0}

Rows = Iterator[JobReport | None]


class AdminService:
    """Answers from the authority, the certificate registry and the state of the machine."""

    def __init__(
        self, authority: Authority, registry: CertificateRegistry, machine: ClusterMachine, clock: Clock, address: str
    ) -> None:
        """Answer for this controller, which is reached at this address."""
        self._authority, self._register, self._machine, self._clock = authority, registry, machine, clock
        self._address = address

    def is_welcome(self, holder: Holder) -> bool:
        """Whether this certificate counts."""
        return not self._register.is_revoked(holder)

    # -- certificates --------------------------------------------------------------------------------------------

    def authority(self) -> wire.Answer:
        """Who signs here."""
        return wire.AuthorityCertificate(wire.VERSION, self._authority.certificate)

    def enrol(self, asked: wire.Enrol) -> wire.Answer:
        """A certificate for a node that has a token."""
        key = key_of(asked.request)
        refused = self._register.admit(asked.secret, asked.name, key, unix_ns())
        return wire.Refusal(refused) if refused is not None else self._sign(Role.NODE, asked.name, asked.request)

    def renew(self, holder: Holder, request: str) -> wire.Answer:
        """A certificate for somebody who has one."""
        if self._register.counting(holder) >= MOST_COUNTING:
            return wire.Refusal(too_many(holder))
        return self._sign(holder.role, holder.name, request)

    def issue(self, asked: wire.Issue) -> wire.Answer:
        """A certificate for a user, because an operator says so."""
        return self._sign(Role.USER, asked.user, asked.request)

    def token(self, asked: wire.MakeToken) -> wire.Answer:
        """A join token's secret."""
        now = unix_ns()
        made = self._register.make_token(asked.uses, now + asked.valid_ns, asked.node, now)
        return wire.NewToken(made, self._address) if isinstance(made, str) else wire.Refusal(made)

    def revoke(self, asked: wire.Revoke) -> wire.Answer:
        """Somebody's certificates count no more."""
        refused = self._register.revoke(asked.role, asked.name, unix_ns())
        return wire.Success() if refused is None else wire.Refusal(refused)

    def _sign(self, role: Role, name: str, request: str) -> wire.Answer:
        now = unix_ns()
        signed = self._authority.sign(role, name, request, _DAYS[role], now)
        self._register.note(role, name, signed, key_of(request), now)
        return wire.EnrolledIdentity(signed.certificate, self._address)

    # -- lists ---------------------------------------------------------------------------------------------------

    def jobs(self, asked: wire.ListJobs, holder: Holder) -> Rows:
        """The jobs that were asked for, as this holder may see them; None for each that was only looked at."""
        turn, reasons = -1, Reasons(self._machine)
        for name in asked.names or list(self._machine.job_table.jobs):
            if self._machine.turn != turn:  # between two pages much may happen
                turn, reasons = self._machine.turn, Reasons(self._machine)
            job = self._machine.job(name, reasons)  # it may be gone since the list began
            if job is None or (asked.user and job.spec.user != asked.user) or (job.state.is_over and not asked.is_over):
                yield None
            else:
                yield _as_seen_by(holder, job)

    def page_of_jobs(self, rows: Rows) -> wire.JobPage:
        """The next page; rows that are left wait for the next question."""
        page: list[JobReport] = []
        is_last = True
        size_bytes = 0
        for looked_at, row in enumerate(rows, 1):
            if row is not None:
                page.append(row)
                size_bytes += len(msgspec.msgpack.encode(row))
            if len(page) >= wire.PAGE_LIMIT or looked_at >= LOOKED_AT or size_bytes >= wire.PAGE_BYTES:
                is_last = False
                break
        return wire.JobPage(page, is_last, self._clock.now())

    def nodes(self, is_connected: Callable[[str], bool]) -> Iterator[wire.NodeLine]:
        """The nodes, for people."""
        for view in list(self._machine.nodes()):
            yield _line_of(view, is_connected=is_connected(view.node))

    def page_of_nodes(self, rows: Iterator[wire.NodeLine]) -> wire.NodePage:
        """The next page."""
        page = list(itertools.islice(rows, wire.PAGE_LIMIT))
        return wire.NodePage(page, len(page) < wire.PAGE_LIMIT, self._clock.now())

    def may_cancel(self, holder: Holder, job: str) -> bool:
        """Whether a job is this holder's to cancel; of one that nobody knows the machine says so."""
        known = self._machine.job_table.jobs.get(job)
        return known is None or _may_see(holder, known.spec)

    def why_not_forget(self, node: str) -> Reject | None:
        """A node may only be forgotten when nothing can run there any more."""
        known = self._machine.inventory.nodes.get(node)
        if known is None:
            return Reject(Reason.UNKNOWN_NODE, f"no node is called {node!r}")
        # By what is wanted there, not by its GPUs: its last report may have named none.
        if not known.is_silent or known.attempts or known.busy:
            detail = "is not silent, or its jobs are not yet given up: drain it, stop its agent, and wait for the grace"
            return Reject(Reason.ALREADY_HERE, detail)
        return None

    def is_taken_note_of(self, report: NodeReport) -> bool:
        """Whether the machine went by a report that it was just told; one of an earlier epoch it passes over."""
        node = self._machine.inventory.nodes.get(report.node)
        return node is not None and node.epoch == report.epoch

    def lease_times(self) -> tuple[Instant, Instant]:
        """Lease and grace, as they are now."""
        return self._machine.settings.lease_ns, self._machine.settings.grace_ns


def _may_see(holder: Holder, spec: JobSpec) -> bool:
    return holder.role is Role.OPERATOR or spec.user == holder.name


def _as_seen_by(holder: Holder, job: JobReport) -> JobReport:
    """Nobody is shown an environment, which may hold secrets; what a job runs, its user and operators only."""
    spec = msgspec.structs.replace(job.spec, environment=())
    if not _may_see(holder, job.spec):
        spec = msgspec.structs.replace(spec, command=(), directory="")
    return msgspec.structs.replace(job, spec=spec)


def _line_of(view: NodeView, *, is_connected: bool) -> wire.NodeLine:
    takes = [gpu for gpu in view.gpus if gpu.offer_ppm and gpu.condition is GpuCondition.HEALTHY]
    return wire.NodeLine(
        node=view.node,
        gpus=len(view.gpus),
        types=list(dict.fromkeys(gpu.type for gpu in view.gpus)),
        running=len({job for job in view.jobs if job}),
        offering=len(takes),
        is_connected=is_connected,
        is_drained=view.is_drained,
        is_silent=view.is_silent,
        last_report_ns=view.last_report,
    )
