"""Wires `cotenant explain`: why a tenant waits, was denied, paused, suspended, refused, evicted, restarted, or ended.

What binds most comes first: whoever is on its way out need not know that it also waits at the gate.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from cotenant.apps.events import history
from cotenant.apps.explain_gate import gate_causes
from cotenant.apps.explain_words import Cause, stage_words
from cotenant.apps.roll import Roll, roll_of
from cotenant.domain.happening import Happening, What
from cotenant.domain.protect import Health, Stage
from cotenant.domain.tenant import NAME_LIMIT, NAME_PATTERN, TenantView
from cotenant.errors import ConfigError, WorldError
from cotenant.format.log import describe_turn
from cotenant.live.clock import rfc3339
from cotenant.live.directory import Places

_KEPT: Final = 256
_UNKNOWN: Final = "no tenant of this name is here, and none is on record; see: cotenant ps --all"
_FATES: Final = (
    *(What.EVICTED, What.KILLED, What.FAULTED, What.HANGS, What.GPU_FAULTED, What.SUSPEND_FAILED, What.RESTORE_FAILED),
    *(What.QUITTING, What.EVICTING),
)
"""What may be why somebody ended, the surest first."""
_ENDS: Final = (What.LEFT, What.LOST)


class Explanation(msgspec.Struct, frozen=True):
    """Where a tenant stands, and why."""

    tenant: str
    state: str
    """"here", "gone", "refused" or "waiting to join"."""
    summary: str
    causes: list[Cause]
    is_served: bool


class _Record:
    """What the journal has of one name, and of the devices; the latest of it."""

    def __init__(self, places: Places, name: str, turn: int, say: Callable[[str], None]) -> None:
        """With the turn that made the tenant stand as it does: what happened in it may be somebody else's."""
        self.own: deque[Happening] = deque(maxlen=_KEPT)
        self._entries: dict[int, str] = {}
        self._devices: dict[int, Happening] = {}
        self.adjusted: dict[int, Happening] = {}
        self._name = name
        self._turn = turn
        self._maker: Happening | None = None
        try:
            self._read(places, say)
        except WorldError:  # a node that never ran has no record: then nobody has this name either
            return

    def _read(self, places: Places, say: Callable[[str], None]) -> None:
        for turn, told in history(places, say):
            for happening in told:
                if happening.what is What.ADJUSTED:
                    self.adjusted[happening.gpu] = happening
                if happening.tenant == self._name:
                    self.own.append(happening)
                elif happening.what is What.GPU_STATE:
                    self._devices[happening.gpu] = happening
                elif happening.turn == self._turn:
                    self._maker = happening
                elif happening.what is What.ADJUSTED:
                    pass
                else:
                    continue
                self._entries[happening.turn] = describe_turn(turn.now, turn.event, turn.actions)
                if len(self._entries) > 4 * _KEPT:
                    del self._entries[next(iter(self._entries))]

    def cause(self, kind: str, text: str, turn: int, details: tuple[str, ...] = ()) -> Cause:
        """A cause with the entry of the turn that is behind it, as far as it is on record."""
        known = (
            *self.own,
            *self._devices.values(),
            *self.adjusted.values(),
            *(() if self._maker is None else (self._maker,)),
        )
        happening = next((each for each in known if each.turn == turn), None)
        unix_ns = 0 if happening is None else happening.unix_ns
        return Cause(kind, text, turn, unix_ns, self._entries.get(turn, ""), list(details))

    def latest(self, *kinds: What, after: int = 0) -> Happening | None:
        """The latest of these kinds, after a turn."""
        found = (each for each in reversed(self.own) if each.what in kinds and each.turn > after)
        return next(found, None)

    def told(self, happening: Happening) -> Cause:
        """A cause in the words of the chronicle."""
        return self.cause(happening.what.value, happening.text, happening.turn)


def explain(places: Places, name: str, say: Callable[[str], None]) -> Explanation:
    """Why it is as it is with this tenant; raises `ConfigError` for a name that nobody has or had."""
    if not name or len(name) > NAME_LIMIT or not re.match(NAME_PATTERN, name):
        raise ConfigError("NAME", name, "no tenant can be called that; see: cotenant ps")
    roll = roll_of(places)
    view = next((view for view in roll.tenants if view.tenant.name == name), None)
    record = _Record(places, name, 0 if view is None else view.tenant.standing.turn, say)
    if view is not None:
        causes = list(_causes_of_one_here(places, roll, view, record))
        return Explanation(name, "here", _where(roll, view), causes, roll.is_served)
    refused = record.latest(What.REFUSED)
    ended = record.latest(*_ENDS)
    awaited = record.latest(What.AWAITED)
    if refused is None and ended is None and awaited is None:
        raise ConfigError("NAME", name, _UNKNOWN)
    last = max((each for each in (refused, ended, awaited) if each is not None), key=lambda each: each.turn)
    if last is awaited:
        return Explanation(name, "waiting to join", f"{name} is not here yet", [record.told(last)], roll.is_served)
    if last is refused:
        causes = [record.told(last), *(() if ended is None else _fate(record, ended))]
        return Explanation(name, "refused", f"{name} is not here: it was refused", causes, roll.is_served)
    return Explanation(name, "gone", f"{name} is gone", list(_fate(record, last)), roll.is_served)


def _fate(record: _Record, ended: Happening) -> Iterator[Cause]:
    """Why one that left ended: what was done to it first, then its own last word."""
    joined = record.latest(What.JOINED)
    since = 0 if joined is None else joined.turn - 1
    for kind in _FATES:
        if (found := record.latest(kind, after=since)) is not None:
            yield record.told(found)
    if (restarted := record.latest(What.RESTARTED, after=since)) is not None:
        yield record.told(restarted)
    yield record.told(ended)


def _where(roll: Roll, view: TenantView) -> str:
    tenant, terms = view.tenant, view.tenant.terms
    gpu = f" on GPU {terms.gpu} ({roll.gpus[terms.gpu].name})" if 0 <= terms.gpu < len(roll.gpus) else ""
    place = f"slot {terms.slot}/{terms.generation}{gpu}, {terms.kind.value} at priority {terms.priority}"
    down = "" if roll.is_served else "; the node is down, so this is the last that is on record"
    return f"{tenant.name} is here: {place}{down}"


def _causes_of_one_here(places: Places, roll: Roll, view: TenantView, record: _Record) -> Iterator[Cause]:
    tenant = view.tenant
    standing = tenant.standing
    if standing.stage is not Stage.RUNNING:
        yield record.cause(standing.stage.value, stage_words(standing, roll.now_ns), standing.turn)
    if not view.connected:
        text = "it is away: the node restarted, and `cotenant run` has not come back to it yet"
        yield record.cause("away", text, _turn_of(record.latest(What.JOINED, What.RESUMED)))
    if tenant.paused:
        paused = record.latest(What.PAUSED)
        text = f"somebody paused it, so that it launches nothing; let it go on with: cotenant resume {tenant.name}"
        yield record.cause("paused", text, _turn_of(paused))
    joined = record.latest(What.JOINED)
    if (placed := record.latest(What.PLACED, after=_turn_of(joined) - 1)) is not None:
        yield record.told(placed)
    for kind, text, details in gate_causes(places, roll, tenant):
        yield record.cause(kind, text, _turn_of(joined), details)
    gpu = tenant.terms.gpu
    if any(dial.gpu == gpu for dial in roll.dials) and gpu in record.adjusted:
        yield record.told(record.adjusted[gpu])
    watch = roll.devices[gpu] if 0 <= gpu < len(roll.devices) else None
    if watch is not None and watch.health not in (Health.INIT, Health.HEALTHY):
        because = f": {watch.why}" if watch.why else ""
        yield record.cause("device", f"GPU {gpu} is {watch.health.value}{because}", watch.turn)
    since = _turn_of(joined) - 1
    for what in (What.FAULTED, What.HANGS, What.RESTARTED, What.MEMORY_WANTED, What.SUSPEND_FAILED):
        if (found := record.latest(what, after=since)) is not None:
            yield record.told(found)


def _turn_of(happening: Happening | None) -> int:
    return 0 if happening is None else happening.turn


def explanation_json(explanation: Explanation) -> Any:
    """`cotenant explain --json`."""
    causes = [{**msgspec.structs.asdict(cause), "ts": rfc3339(cause.unix_ns)} for cause in explanation.causes]
    return {**msgspec.structs.asdict(explanation), "causes": causes}
