"""Writes the status of the GpuNode object when it changes, and regularly as a sign of life."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import NOT_FOUND, ApiClient, ApiError
from cotenant.cluster.kubernetes.gpu_node import API_VERSION, GpuNode, GpuNodeStatus, gpu_node_path
from cotenant.cluster.kubernetes.plugin.node_link import NodeLink
from cotenant.cluster.kubernetes.plugin.report import StatusMaker, condition, unattended
from cotenant.errors import WorldError
from cotenant.node import wire
from cotenant.units.instant import SECOND_NS, Instant

HEARTBEAT_NS: Final = 20 * SECOND_NS
"""The longest time between two reports; the controller treats a node as silent after a minute."""
CHANGE_NS: Final = 2 * SECOND_NS
"""The shortest time between two reports of changed loads; tenants that come or go are reported at once."""
_CLOCK_S: Final = 2
"""The start of a daemon by the wall clock varies by this much: by rounding, and because the clock is corrected."""


class NodeReporter:
    """Reports the node; `observe` is called about once per second."""

    def __init__(
        self,
        api: ApiClient,
        node: NodeLink,
        name: str,
        report: StatusMaker,
        owner: Callable[[], object],
        unix_ns: Callable[[], int],
    ) -> None:
        """`name` is that of the Kubernetes node, which owns the object; `unix_ns` reads the wall clock."""
        self._api = api
        self._node = node
        self._name = name
        self._report = report
        self._owner = owner
        self._unix_ns = unix_ns
        self._epoch: int | None = None
        self._daemon: tuple[int, int] | None = None  # pid, and uptime when it was asked last
        self._latest = GpuNodeStatus()
        self._written: tuple[GpuNodeStatus, bool] | None = None
        self._written_ns: Instant | None = None
        self._since = ""
        self.is_new_daemon = False
        """Whether the last observation found another daemon than the one before."""

    def observe(self, tenants: wire.TenantList | None, problem: str, now: Instant) -> None:
        """Report the node if its report is due; None: the daemon does not answer, because of `problem`.

        Raise `WorldError` if the API or the daemon fails; the next call tries again.
        """
        if self._epoch is None:
            self._epoch = self._recorded_epoch()
        self.is_new_daemon = False
        if tenants is not None:
            self._notice_restart()
            activity = self._node.activity().gpus
            self._latest = self._report.make(tenants, activity, epoch=self._epoch, now=now)
        else:
            self._latest.allocation = self._report.allocation
        status = self._latest if tenants is not None else unattended(self._latest)
        if self._is_due(status, tenants is not None, now):
            self._write(status, problem, is_ready=tenants is not None)
            self._written, self._written_ns = (status, tenants is not None), now

    def _is_due(self, status: GpuNodeStatus, is_ready: bool, now: Instant) -> bool:  # noqa: FBT001
        if self._written is None or self._written_ns is None or self._written[1] != is_ready:
            return True
        before, elapsed_ns = self._written[0], now - self._written_ns
        if elapsed_ns >= HEARTBEAT_NS or status.epoch != before.epoch:
            return True
        if _essence(status) != _essence(before):
            return True
        return status != before and elapsed_ns >= CHANGE_NS

    def _notice_restart(self) -> None:
        """Increment the epoch if another daemon answers than before; it never falls, whatever the clock does."""
        status = self._node.status()
        before, self._daemon = self._daemon, (status.pid, status.uptime_ns)
        if before is not None and before[0] == status.pid and before[1] <= status.uptime_ns:
            return
        self.is_new_daemon = True
        started_s = (self._unix_ns() - status.uptime_ns) // SECOND_NS
        assert self._epoch is not None
        # A plugin that restarts finds the epoch of a daemon that still runs, and keeps it.
        if before is not None or self._epoch < started_s - _CLOCK_S:
            self._epoch = max(self._epoch + 1, started_s)

    def _recorded_epoch(self) -> int:
        try:
            return self._api.get(gpu_node_path(self._name), GpuNode).status.epoch
        except ApiError as error:
            if error.status == NOT_FOUND:
                return 0
            raise

    def _write(self, status: GpuNodeStatus, problem: str, *, is_ready: bool) -> None:
        observed_at = _time_text(self._unix_ns())
        if self._written is None or self._written[1] != is_ready or not self._since:
            self._since = observed_at
        body: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(status, observed_at=observed_at))
        reason = "DaemonAnswers" if is_ready else "DaemonDown"
        body["conditions"] = [condition(is_ready=is_ready, reason=reason, message=problem, since=self._since)]
        try:
            self._api.patch(gpu_node_path(self._name, "status"), {"status": body})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            self._create()
            self._api.patch(gpu_node_path(self._name, "status"), {"status": body})

    def _create(self) -> None:
        metadata = {"name": self._name, "ownerReferences": [self._owner()]}
        body = {"apiVersion": API_VERSION, "kind": names.GPU_NODE_KIND, "metadata": metadata}
        try:
            self._api.create(gpu_node_path(), body)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            crd = f"{names.GPU_NODE_PLURAL}.{names.GROUP}"
            raise WorldError(f"the cluster has no resource {crd}; install the CRD of the chart") from None


def _essence(status: GpuNodeStatus) -> object:
    """Return what is reported at once: which tenants there are, their states, and the conditions of the GPUs."""
    gpus = [(gpu.uuid, gpu.condition, [(one.name, one.pod_uid) for one in gpu.online]) for gpu in status.gpus]
    return gpus, [(tenant.pod_uid, tenant.claim_uid, tenant.state) for tenant in status.tenants]


def _time_text(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
