"""Who operates the node, and what the tenants of each user may be."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cotenant.errors import ConfigError
from cotenant.node.config.access import EVERYBODY, LimitsConfig, OperatorsConfig
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.peer import PeerIdentity
from cotenant.node.model.tenant import TenantSpec
from cotenant.units.text import counted, format_share, format_size

_LARGEST_ID: Final = (1 << 32) - 2


class _Limits(NamedTuple):
    """The limits of one user or group; both ids None: of everybody."""

    uid: int | None
    gid: int | None
    limits: LimitsConfig

    def applies_to(self, peer: PeerIdentity) -> bool:
        if self.gid is not None:
            return self.gid in (peer.gid, *peer.groups)
        return self.uid is None or self.uid == peer.uid


class Access:
    """Decides by the identity that the kernel supplied."""

    def __init__(self, operators: OperatorsConfig, limits: Sequence[LimitsConfig], own_uid: int) -> None:
        """Look up the names; raise `ConfigError` for a user or group that does not exist."""
        self._own_uid = own_uid
        self.update(operators, limits)

    def update(self, operators: OperatorsConfig, limits: Sequence[LimitsConfig]) -> None:
        """Replace the rules; if a user or group does not exist, raise `ConfigError` and change nothing."""
        users = {self._own_uid, *(_uid_of(name, "operators.users") for name in operators.users)}
        groups = {_gid_of(name, "operators.groups") for name in operators.groups}
        tables = [_limits_of(index, table) for index, table in enumerate(limits)]
        self._users, self._groups, self._limits = users, groups, tables
        self._has_users = bool(operators.users)

    def is_own_user(self, peer: PeerIdentity) -> bool:
        """Return whether the user of a peer runs the node; one in another pid or user namespace never does."""
        return not peer.is_foreign and peer.uid == self._own_uid

    def is_operator(self, peer: PeerIdentity) -> bool:
        """Return whether a peer operates the node; one in another pid or user namespace never does."""
        if peer.is_foreign:
            return False
        return peer.uid in self._users or not self._groups.isdisjoint((peer.gid, *peer.groups))

    def socket_mode(self) -> tuple[int, int]:
        """Return the mode of operator.sock and its group (-1: unchanged).

        File permissions express no user besides the owner and no second group; then the credentials alone decide.
        """
        if not self._has_users and not self._groups:
            return 0o600, -1
        if not self._has_users and len(self._groups) == 1:
            return 0o660, next(iter(self._groups))
        return 0o666, -1

    def objection(self, peer: PeerIdentity, spec: TenantSpec, present: Sequence[TenantSpec]) -> Reject | None:
        """Return why a peer may not join with this spec; `present` are the other tenants of its user."""
        limits = next((entry.limits for entry in self._limits if entry.applies_to(peer)), None)
        if limits is None:
            return None
        for reason, others in ((Reason.NOT_ALLOWED, ()), (Reason.LIMIT_REACHED, present)):
            detail = _violation(limits, spec, others)
            if detail is not None:
                return Reject(reason, f"user {peer.uid} {detail}")
        return None


def _violation(limits: LimitsConfig, spec: TenantSpec, present: Sequence[TenantSpec]) -> str | None:
    if spec.kind not in limits.kinds:
        kinds = " or ".join(kind.value for kind in limits.kinds)
        return f"may only run {kinds} tenants, and this one is {spec.kind.value}"
    if spec.priority < limits.priority:
        return f"may not have priority {spec.priority}: {limits.priority} is the highest that its limits allow"
    if len(present) >= limits.tenants:
        return f"may run {counted(limits.tenants, 'tenant')} at a time and has {len(present)}"
    if limits.memory is not None:
        if not spec.memory_bytes:
            return f"must name the memory of a tenant, since it may use {format_size(limits.memory)}: add --memory"
        total_bytes = sum(each.memory_bytes * each.device_count for each in (spec, *present))
        if total_bytes > limits.memory:
            return f"may reserve {format_size(limits.memory)} in total, and this makes {format_size(total_bytes)}"
    if limits.share is not None:
        total_ppm = sum(each.share_ppm * each.device_count for each in (spec, *present))
        if total_ppm > limits.share:
            allowed, total = format_share(limits.share), format_share(total_ppm)
            return f"may reserve a share of {allowed} in total, and this makes {total}"
    return None


def _limits_of(index: int, table: LimitsConfig) -> _Limits:
    if table.group:
        return _Limits(None, _gid_of(table.group, f"limits[{index}].group"), table)
    uid = None if table.user == EVERYBODY else _uid_of(table.user, f"limits[{index}].user")
    return _Limits(uid, None, table)


def _uid_of(name: str, field: str) -> int:
    return _id_of(name, field, "user", lambda: pwd.getpwnam(name).pw_uid)


def _gid_of(name: str, field: str) -> int:
    return _id_of(name, field, "group", lambda: grp.getgrnam(name).gr_gid)


def _id_of(name: str, field: str, what: str, look_up: Callable[[], int]) -> int:
    if name.isascii() and name.isdigit() and int(name) <= _LARGEST_ID:
        return int(name)
    try:
        return look_up()
    except (KeyError, ValueError):  # a name with a zero byte is no name
        raise ConfigError(field, name, f"there is no such {what}; create it or name another") from None
