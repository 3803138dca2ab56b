"""Leader election by a Lease: of several controllers, the one that renews the Lease works and the others wait.

A candidate never compares its own clock with that of the holder: it takes over when it has seen the same record for the
whole duration of the lease (https://kubernetes.io/docs/concepts/architecture/leases/). Two leaders at the same time
would do no harm either, because every request of the controller is conditional.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import CONFLICT, NOT_FOUND, ApiClient, ApiError, resource_path
from cotenant.cluster.kubernetes.controller.mapping import timestamp_of
from cotenant.units.instant import SECOND_NS, Instant

API_VERSION: Final = "coordination.k8s.io/v1"
DURATION_S: Final = 15
RENEW_WITHIN_S: Final = 10
"""A leader that could not renew the Lease for this long stops."""
RETRY_S: Final = 2.0


class LeaseMeta(msgspec.Struct, rename="camel", omit_defaults=True):
    """Metadata of a Lease."""

    name: str
    namespace: str = ""
    resource_version: str = ""


class LeaseSpec(msgspec.Struct, rename="camel"):
    """Specification of a Lease."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(msgspec.Struct, rename="camel"):
    """A Lease."""

    metadata: LeaseMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
    api_version: str = API_VERSION
    kind: str = "Lease"


class Election:
    """Tries to hold the Lease; `step` is called again and again, by one thread."""

    def __init__(self, client: ApiClient, namespace: str, identity: str, unix_ns: Callable[[], int]) -> None:
        """`unix_ns` gives the times that are written, which nothing depends on."""
        self._client, self._namespace, self._identity = client, namespace, identity
        self._unix_ns = unix_ns
        self._seen: tuple[str | None, str | None] | None = None
        self._seen_at: Instant = 0
        self._renewed_at: Instant = 0
        self.is_leader = False
        self.holder = ""
        """The present holder, as far as known."""
        self.problem = ""
        """Why the last step failed."""

    def step(self, now: Instant) -> bool:
        """Acquire or renew the Lease if possible, and return whether this process is the leader now."""
        try:
            has_renewed = self._try(now)
            self.problem = ""
        except ApiError as error:
            has_renewed = False
            self.problem = "" if error.status == CONFLICT else str(error)
        if has_renewed:
            self.is_leader, self._renewed_at = True, now
        elif self.is_leader and (
            (self.holder and self.holder != self._identity) or now >= self._renewed_at + RENEW_WITHIN_S * SECOND_NS
        ):
            self.is_leader = False
        return self.is_leader

    def release(self) -> None:
        """Give the Lease back, so that another controller need not wait for its end."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            lease = self._client.get(self._path, LeaseObject)
            if lease.spec.holder_identity == self._identity:
                lease.spec.holder_identity = ""
                lease.spec.lease_duration_seconds = 1
                self._client.replace(self._path, lease)
        except ApiError:
            return  # the Lease ends by itself

    @property
    def _path(self) -> str:
        return resource_path(API_VERSION, "leases", self._namespace, names.LEASE)

    def _try(self, now: Instant) -> bool:
        written = timestamp_of(self._unix_ns(), micro=True)
        try:
            lease = self._client.get(self._path, LeaseObject)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            spec = LeaseSpec(self._identity, DURATION_S, written, written, 0)
            lease = LeaseObject(LeaseMeta(names.LEASE, self._namespace), spec)
            self._client.create(resource_path(API_VERSION, "leases", self._namespace), lease)
            return True
        self.holder = lease.spec.holder_identity or ""
        record = (lease.spec.holder_identity, lease.spec.renew_time)
        if record != self._seen:
            self._seen, self._seen_at = record, now
        duration_ns = (lease.spec.lease_duration_seconds or DURATION_S) * SECOND_NS
        if self.holder not in {"", self._identity} and now < self._seen_at + duration_ns:
            return False
        if self.holder != self._identity:
            lease.spec.acquire_time = written
            lease.spec.lease_transitions = (lease.spec.lease_transitions or 0) + 1
        lease.spec.holder_identity, lease.spec.renew_time = self._identity, written
        lease.spec.lease_duration_seconds = DURATION_S
        self._client.replace(self._path, lease)
        self.holder = self._identity
        return True
