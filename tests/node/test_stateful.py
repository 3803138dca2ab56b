"""The invariants of the node hold for any sequence of events, and its journal reproduces its state."""

import io

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from cotenant.gate.grant import Kind
from cotenant.gate.rules import GateEntry, GatePolicy
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.node.model.action import (
    NO_PEER,
    Confirm,
    IssueGrant,
    Refuse,
    Revoke,
    SetOnlineShare,
    Stop,
)
from cotenant.node.model.admission import Reason
from cotenant.node.model.control import AdjustCause, Adjustment, OnlineShareSetpoint
from cotenant.node.model.event import (
    GateChange,
    GpusFound,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    ObjectiveChanged,
    OnlineShareProposed,
    PeerLost,
    PriorityChanged,
    RulesChanged,
    ShareChanged,
    TenantJoined,
    TenantLeft,
    TenantResumed,
    TenantsPaused,
    TimerFired,
)
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.tenant import NEIGHBOURS_LIMIT, TenantSpec
from cotenant.node.policy.limit.share import ALL_SMS_PPM, delay_of, share_of
from cotenant.node.state.node import NodeMachine
from cotenant.runner.host import replay
from cotenant.runner.journal import MAGIC, encode_turn
from cotenant.units.share import WHOLE_PPM
from tests.support.effort import examples
from tests.support.node_setup import FOUND, node_settings, picks, specs, steps
from tests.support.tenant_lifecycle import Life


class NodeStateMachine(Life):
    """The events that a node receives, in any order."""

    # -- what can happen ------------------------------------------------------------------------------------------

    @rule(step=steps, spec=specs)
    def join(self, step: int, spec: TenantSpec) -> None:
        self.now += step
        peer = self.new_number()
        *_, action = self.tell(TenantJoined(peer, self.new_number(), 1000, spec))
        free = [slot for slot in range(self.settings.slots) if slot not in self.held or self.held[slot].peer == peer]
        if isinstance(action, Refuse) and action.reject.reason is Reason.NO_SLOT:
            assert free == []
        elif isinstance(action, IssueGrant):
            assert action.grant.slot == free[0]
            assert (action.tenant == spec.name) or not spec.name
        devices = self.settings.gpus
        named = [
            next((index for index, gpu in enumerate(devices) if gpu.is_called(name, index)), -1)
            for name in spec.gpu_names
        ]
        if isinstance(action, IssueGrant) and devices:
            assert len(set(action.grant.gpus)) == spec.device_count
            assert not named or list(action.grant.gpus) == named
        elif isinstance(action, Refuse) and action.reject.reason is Reason.UNKNOWN_GPU:
            assert -1 in named or len(set(named)) < len(named) or spec.device_count > len(devices)

    @precondition(lambda self: len(self.settings.gpus) < 4)
    @rule(gpu=st.sampled_from(FOUND))
    def find_gpu(self, gpu: Gpu) -> None:
        self.settings = msgspec.structs.replace(self.settings, gpus=(*self.settings.gpus, gpu))
        assert self.tell(GpusFound((gpu,))) == []
        assert self.machines[0].settings == self.settings

    @precondition(lambda self: self.connected())
    @rule(pick=picks, spec=specs)
    def join_twice(self, pick: int, spec: TenantSpec) -> None:
        holder = self.connected()[pick % len(self.connected())]
        (action,) = self.tell(TenantJoined(holder.peer, holder.pid, 1000, spec))
        assert isinstance(action, Refuse)
        assert action.reject.reason is Reason.ALREADY_HERE

    @precondition(lambda self: self.connected())
    @rule(step=steps, pick=picks, lost=st.booleans())
    def end(self, step: int, pick: int, lost: bool) -> None:
        self.now += step
        holder = self.connected()[pick % len(self.connected())]
        action, *_ = self.tell(PeerLost(holder.peer) if lost else TenantLeft(holder.peer, "exit 0"))
        assert isinstance(action, Revoke)
        assert action.peer == (NO_PEER if lost else holder.peer)

    @rule(lost=st.booleans())
    def end_unknown_peer(self, lost: bool) -> None:
        peer = self.new_number()
        assert self.tell(PeerLost(peer) if lost else TenantLeft(peer, "exit 0")) == []

    @precondition(lambda self: self.away())
    @rule(step=steps, pick=picks)
    def resume(self, step: int, pick: int) -> None:
        self.now += step
        holder = self.away()[pick % len(self.away())]
        peer = self.new_number()
        event = TenantResumed(peer, holder.pid, 1000, holder.grant.slot, holder.grant.generation)
        first, *more = [self.neighbours[holder.grant.slot][gpu] for gpu in holder.grant.places]
        turn = self.machines[0].turn + 1
        assert self.tell(event) == [IssueGrant(turn, peer, holder.name, holder.grant, first, tuple(more))]

    @precondition(lambda self: self.held)
    @rule(pick=picks, wrong=st.sampled_from(["pid", "uid", "generation", "slot", "again"]), by=st.sampled_from([-1, 1]))
    def resume_invalid_slot(self, pick: int, wrong: str, by: int) -> None:
        holder = [self.held[slot] for slot in sorted(self.held)][pick % len(self.held)]
        pid, uid, slot, generation = holder.pid, 1000, holder.grant.slot, holder.grant.generation
        expected = Reason.ALREADY_HERE if holder.peer != NO_PEER else None
        if wrong == "pid":
            pid, expected = pid + by * 1000, Reason.NOT_YOURS
        elif wrong == "uid":
            uid, expected = uid + by, Reason.NOT_YOURS
        elif wrong == "generation":
            generation, expected = generation + by, Reason.STALE
        elif wrong == "slot":
            slot = -1 if by < 0 else max(self.held) + 1
            expected = Reason.UNKNOWN_SLOT
        if expected is None:
            return
        (action,) = self.tell(TenantResumed(self.new_number(), pid, uid, slot, generation))
        assert isinstance(action, Refuse)
        assert action.reject.reason is expected

    @precondition(lambda self: self.held)
    @rule(
        picked=st.lists(picks, max_size=3), paused=st.booleans(), uid=st.sampled_from([1000, 1001]), owner=st.booleans()
    )
    def pause_or_resume(self, picked: list[int], paused: bool, uid: int, owner: bool) -> None:
        holders = [self.held[slot] for slot in sorted(self.held)]
        chosen = list(dict.fromkeys(holders[pick % len(holders)] for pick in picked))
        names = tuple(holder.name for holder in chosen)
        before = dict(self.tables)
        (action,) = self.tell(TenantsPaused(9, uid, owner, names, all_offline=False, paused=paused))
        if names and uid != 1000 and not owner:
            assert isinstance(action, Refuse)
            assert action.reject.reason is Reason.NOT_YOURS
            assert self.tables == before
            return
        if any(holder.grant.gpu < 0 for holder in chosen):
            assert isinstance(action, Refuse)
            assert action.reject.reason is Reason.NO_GATE
            return
        assert action == Confirm(self.machines[0].turn, 9, names, self.in_force)
        for holder in chosen:
            self.held[holder.grant.slot] = holder._replace(paused=paused)

    @rule(paused=st.booleans(), uid=st.sampled_from([1000, 1001]), owner=st.booleans())
    def pause_all_offline(self, paused: bool, uid: int, owner: bool) -> None:
        gated = {slot: holder for slot, holder in self.held.items() if holder.grant.gpu >= 0}
        mine = {slot: holder for slot, holder in gated.items() if owner or uid == 1000}
        offline = {slot: holder for slot, holder in mine.items() if holder.grant.kind is Kind.OFFLINE}
        (action,) = self.tell(TenantsPaused(9, uid, owner, (), all_offline=True, paused=paused))
        assert isinstance(action, Confirm)
        assert sorted(action.tenants) == sorted(holder.name for holder in offline.values())
        self.held |= {slot: holder._replace(paused=paused) for slot, holder in offline.items()}

    @rule(name=st.sampled_from(["", "nobody", "web"]), paused=st.booleans())
    def pause_unknown_tenant(self, name: str, paused: bool) -> None:
        if all(holder.name != name for holder in self.held.values()):
            before = dict(self.tables)
            (action,) = self.tell(TenantsPaused(9, 1000, True, (name,), all_offline=False, paused=paused))
            assert isinstance(action, Refuse)
            assert action.reject.reason is Reason.UNKNOWN_TENANT
            assert self.tables == before

    @precondition(lambda self: self.held)
    @rule(pick=picks, priority=st.integers(0, 9), share=st.sampled_from([0, 100_000, 400_000, 1_000_000]))
    def change_priority_and_share(self, pick: int, priority: int, share: int) -> None:
        holder = [self.held[slot] for slot in sorted(self.held)][pick % len(self.held)]
        *granted, action = self.tell(PriorityChanged(9, 1000, False, holder.name, priority))
        assert len(granted) == (holder.grant.priority != priority)
        assert action == Confirm(self.machines[0].turn, 9, (holder.name,), self.in_force)
        *granted, action = self.tell(ShareChanged(9, 1000, False, holder.name, share))
        assert isinstance(action, Confirm) or (not granted and share > holder.grant.share_ppm)

    @precondition(lambda self: self.held)
    @rule(pick=picks, slo_ns=st.sampled_from([0, 0, 5, 50]))
    def change_objective(self, pick: int, slo_ns: int) -> None:
        """Adjustment ends with the last objective; the table changes in the same turn."""
        holder = [self.held[slot] for slot in sorted(self.held)][pick % len(self.held)]
        grant = holder.grant
        reported = self.tell(ObjectiveChanged(9, 1000, False, holder.name, slo_ns))
        if slo_ns and grant.kind is Kind.OFFLINE:
            assert [action.reject.reason for action in reported if isinstance(action, Refuse)] == [Reason.NO_OBJECTIVE]
            assert len(reported) == 1
            return
        assert reported[-1] == Confirm(self.machines[0].turn, 9, (holder.name,), self.in_force)
        assert sum(isinstance(action, IssueGrant) for action in reported) == (grant.slo_ns != slo_ns)

    @rule(owner=st.booleans(), policy=st.none() | st.sampled_from(GatePolicy), bound_ns=st.none() | st.integers(0, 3))
    def change_rules(self, owner: bool, policy: GatePolicy | None, bound_ns: int | None) -> None:
        change = GateChange(policy, bound_ns)
        self.in_force = change.applied(self.in_force) if owner else self.in_force
        (action,) = self.tell(RulesChanged(9, owner, change))
        assert isinstance(action, Confirm if owner else Refuse)

    @rule(
        gpu=st.integers(-1, 3),
        online_ppm=st.sampled_from([0, 200_000, 500_000, 980_000]),
        shares=st.dictionaries(st.integers(0, 4), st.sampled_from([1, 300_000, WHOLE_PPM]), max_size=4),
    )
    def adjust(self, gpu: int, online_ppm: int, shares: dict[int, int]) -> None:
        """A proposal may arrive when its tenants have left or others have joined."""
        proposed = Adjustment(gpu, online_ppm, AdjustCause.HEADROOM, "room", tuple(sorted(shares.items())))
        was_ppm = share_of(self.in_force.delay_ppm)
        if gpu in self.setpoints:
            was_ppm = self.setpoints[gpu].online_ppm
        is_kept = online_ppm > 0 and gpu < len(self.settings.gpus) and gpu in self.kept_devices()
        if is_kept and self.settings.control.enabled:
            self.setpoints[gpu] = OnlineShareSetpoint(gpu, online_ppm, proposed.shares)
            assert self.tell(OnlineShareProposed(proposed)) == [
                SetOnlineShare(self.machines[0].turn, proposed, was_ppm)
            ]
        else:
            assert self.tell(OnlineShareProposed(proposed)) == []

    @rule(step=steps)
    def wake(self, step: int) -> None:
        """Fire the timer, also early, late or without a deadline."""
        self.now += step
        due = self.machines[0].next_wakeup()
        actions = self.tell(TimerFired())
        if due is None or self.now < due:
            assert actions == []
        else:
            assert actions
            assert self.away() == []

    @precondition(lambda self: self.machines[0].next_wakeup() is not None)
    @rule()
    def wake_in_time(self) -> None:
        self.now = max(self.now, self.machines[0].next_wakeup() or 0)
        self.wake(0)

    @rule(step=steps, new=st.none() | node_settings)
    def restart(self, step: int, new: NodeSettings | None) -> None:
        """The process dies; the next one reads the journal, perhaps under other settings."""
        self.now += step
        recovered = NodeMachine()
        replay(recovered, self.segment)
        self.machines[0] = recovered
        if new is not None and new.gate != self.settings.gate:
            self.in_force = new.gate
        self.settings = new or self.settings
        self.held = {slot: holder._replace(peer=NO_PEER) for slot, holder in self.held.items()}
        actions = self.tell(NodeStarted(self.settings, "1", self.now))
        assert [action.grant.slot for action in actions if isinstance(action, IssueGrant)] == sorted(self.held)

    @rule()
    def stop(self) -> None:
        assert self.tell(NodeStopping("told to")) == [Stop(self.machines[0].turn, "told to")]

    @rule()
    def snapshot(self) -> None:
        """A new segment begins; a machine restored from its head must continue exactly as the others."""
        head = NodeTurn(self.now, self.machines[0].snapshot(), [])
        restored = NodeMachine()
        assert restored.handle(head.event, now=head.now) == []
        self.machines = [*self.machines[:2], restored]
        self.segment = [head]
        self.turns.append(head)

    # -- what is always true --------------------------------------------------------------------------------------

    @invariant()
    def model_and_machine_agree(self) -> None:
        for machine in self.machines:
            views = machine.tenants()
            assert [view.tenant.grant for view in views] == [self.held[slot].grant for slot in sorted(self.held)]
            assert [view.connected for view in views] == [self.held[slot].peer != NO_PEER for slot in sorted(self.held)]
            assert [view.tenant.paused for view in views] == [self.held[slot].paused for slot in sorted(self.held)]
            assert machine.rules == self.in_force
            assert [view.tenant.pid for view in views] == [
                self.granted_to[view.tenant.grant.slot, view.tenant.grant.generation] for view in views
            ]

    @invariant()
    def every_page_counts_the_others_on_its_device(self) -> None:
        devices = [gpu for holder in self.held.values() for gpu in holder.grant.places]
        assert self.neighbours == {
            slot: {gpu: min(devices.count(gpu) - 1, NEIGHBOURS_LIMIT) for gpu in holder.grant.places}
            for slot, holder in self.held.items()
        }

    @invariant()
    def every_table_lists_the_tenants_of_its_device(self) -> None:
        """Also where a restarted node has fewer devices than the one before: the table of a lost one runs out."""
        entries: dict[int, list[GateEntry]] = {gpu: [] for gpu in range(len(self.settings.gpus))}
        for slot, holder in sorted(self.held.items()):
            grant = holder.grant
            is_online = grant.kind is Kind.ONLINE
            for gpu in grant.places:
                shares = dict(self.setpoints[gpu].shares) if gpu in self.setpoints else {}
                entry = GateEntry(slot, grant.generation, grant.priority, is_online, holder.paused, grant.share_ppm)
                entry = msgspec.structs.replace(entry, limit_ppm=shares.get(slot, 0))
                entries.setdefault(gpu, []).append(entry)
        for gpu, listed in entries.items():
            if gpu >= 0:
                rules = msgspec.structs.replace(self.in_force, entries=tuple(listed))
                if gpu in self.setpoints:
                    online_ppm = self.setpoints[gpu].online_ppm
                    is_open = online_ppm <= ALL_SMS_PPM and rules.policy is GatePolicy.FILL
                    rules = msgspec.structs.replace(
                        rules,
                        policy=GatePolicy.OPEN if is_open else rules.policy,
                        delay_ppm=delay_of(online_ppm),
                        sm_ppm=0 if rules.sm_ppm is None else rules.sm_ppm,
                    )
                assert self.tables[gpu] == rules
        assert -1 not in self.tables
        assert all(not rules.entries for gpu, rules in self.tables.items() if gpu not in entries)

    @invariant()
    def all_machines_are_equal(self) -> None:
        first, *others = self.machines
        assert all(other.snapshot() == first.snapshot() for other in others)
        assert all(other.next_wakeup() == first.next_wakeup() for other in others)

    @invariant()
    def disconnected_tenants_have_a_deadline(self) -> None:
        if self.away():
            assert self.machines[0].next_wakeup() is not None

    def teardown(self) -> None:
        """The journal of the whole life, and that of its last segment, replay to the letter."""
        for turns in (self.turns, self.segment):
            content = MAGIC + b"".join(encode_turn(turn.now, turn.event, turn.actions) for turn in turns)
            read = list(NodeJournalReader(io.BytesIO(content).read))
            assert read == turns
            machine = NodeMachine()
            assert replay(machine, read) == len(turns)
            assert machine.snapshot() == self.machines[0].snapshot()


NodeStateMachine.TestCase.settings = settings(max_examples=examples(100, 2500), stateful_step_count=50, deadline=None)
TestNodeStateMachine = NodeStateMachine.TestCase
