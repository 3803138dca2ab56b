"""The node ends, suspends and refuses tenants only in legal steps and with a reason, whatever fails and when."""

import io
from typing import NamedTuple

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cotenant.gate.grant import Kind
from cotenant.node.journal import NodeJournalReader, NodeTurn
from cotenant.node.model.action import NO_PEER, Action, IssueGrant, Refuse, Revoke
from cotenant.node.model.admission import Reason
from cotenant.node.model.event import (
    Event,
    EvictionRequested,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    MemoryRequested,
    MpsStatusChanged,
    NodeSettings,
    NodeStarted,
    PeerLost,
    QuitRequested,
    TenantDrained,
    TenantFaulted,
    TenantHung,
    TenantJoined,
    TenantLeft,
    TenantRestarted,
    TenantRestored,
    TenantResumed,
    TenantsPaused,
    TenantSuspended,
    TimerFired,
)
from cotenant.node.model.protection import ExitPhase, GpuSample, Health, OnPressure
from cotenant.node.model.tenant import Tenant, TenantSpec
from cotenant.node.state.node import NodeMachine
from cotenant.runner.host import replay
from cotenant.runner.journal import MAGIC, encode_turn
from tests.support.effort import examples
from tests.support.node_setup import picks, steps
from tests.support.node_steps import check_steps
from tests.support.protection_nodes import (
    CALM,
    GPUS,
    LIMITS,
    SAMPLES,
    B,
    D,
    F,
    G,
    K,
    R,
    S,
    T,
    devices,
    specs,
)


class Holder(NamedTuple):
    """A tenant in the model."""

    pid: int
    generation: int
    peer: int


class ProtectedNodeMachine(RuleBasedStateMachine):
    """The state machine, copies restored from its snapshots, and a model of every tenant's phases."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.machines = [NodeMachine()]
        self.turns: list[NodeTurn] = []
        self.segment: list[NodeTurn] = []
        self.held: dict[int, Holder] = {}
        self.sequence = 100
        self.waiting_peers: set[int] = set()
        self.handle(NodeStarted(NodeSettings(6, 30, 0, "spread", "reserve", GPUS, limits=LIMITS), "1", 0))

    # -- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        before = self.tenants()
        actions, *others = [machine.handle(event, now=self.now) for machine in self.machines]
        assert all(other == actions for other in others)
        for machine in self.machines:
            machine.check()
        turn = NodeTurn(self.now, event, actions)
        self.turns.append(turn)
        self.segment.append(turn)
        assert all(action.cause == self.machines[0].turn for action in actions)
        for action in actions:
            self.apply_action(action)
        if not isinstance(event, NodeStarted):
            check_steps(
                event, before, self.tenants(), actions, {slot: holder.peer for slot, holder in self.held.items()}
            )
        return actions

    def apply_action(self, action: Action) -> None:
        views = self.tenants()
        if isinstance(action, IssueGrant):
            slot = action.grant.slot
            holder = self.held.get(slot)
            if holder is None:
                self.held[slot] = Holder(views[slot].pid, action.grant.generation, action.peer)
                self.waiting_peers.discard(action.peer)
                for watch in [self.machines[0].watches()[gpu] for gpu in action.grant.gpus]:
                    assert watch.health is not Health.DISABLED
                    assert action.grant.kind is Kind.ONLINE or watch.health in (Health.INIT, Health.HEALTHY)
            elif action.peer != NO_PEER:
                self.held[slot] = holder._replace(peer=action.peer)
        elif isinstance(action, Revoke):
            del self.held[action.slot]
        elif isinstance(action, Refuse):
            self.waiting_peers.discard(action.peer)
            assert (action.reject.reason in (Reason.UNHEALTHY, Reason.NO_CAPACITY_YET)) == bool(
                action.reject.retry_after_ns
            )

    def tenants(self) -> dict[int, Tenant]:
        return {view.tenant.grant.slot: view.tenant for view in self.machines[0].tenants()}

    def pick(self, number: int, phases: tuple[ExitPhase, ...] = (), *, connected: bool = False) -> int | None:
        slots = [
            slot
            for slot, tenant in sorted(self.tenants().items())
            if (not phases or tenant.lifecycle.phase in phases) and (not connected or self.held[slot].peer != NO_PEER)
        ]
        return slots[number % len(slots)] if slots else None

    def number(self) -> int:
        self.sequence += 1
        return self.sequence

    # -- what can happen -------------------------------------------------------------------------------------------

    @rule(step=steps, spec=specs)
    def join(self, step: int, spec: TenantSpec) -> None:
        self.now += step
        peer = self.number()
        self.waiting_peers.add(peer)
        actions = self.handle(TenantJoined(peer, self.number(), 1000, spec))
        answers = [action for action in actions if isinstance(action, IssueGrant | Refuse) and action.peer == peer]
        assert len(answers) <= 1
        assert answers or spec.kind is Kind.ONLINE, "only online joins wait"

    @rule(gpu=devices, mode=st.sampled_from(OnPressure), memory=st.sampled_from([200, 500]))
    def join_under_pressure(self, gpu: int, mode: OnPressure, memory: int) -> None:
        """Let an online tenant join a device whose memory an offline tenant holds."""
        free_bytes = self.machines[0].plan().capacity(gpu).memory_free_bytes
        greedy = TenantSpec(Kind.OFFLINE, 9, memory_bytes=max(free_bytes, 0), gpu=str(gpu), on_pressure=mode)
        for spec in (greedy, TenantSpec(Kind.ONLINE, 2, memory_bytes=memory, gpu=str(gpu))):
            self.join(0, spec)

    @rule(step=st.integers(0, 3), gpu=devices, sample=st.sampled_from(SAMPLES), often=st.integers(1, 5))
    def sample(self, step: int, gpu: int, sample: GpuSample, often: int) -> None:
        for _ in range(often):
            self.now += step
            event = GpuSampled(gpu, sample)
            machine = self.machines[0]
            is_changed, before = machine.is_changed_by(event, self.now), machine.snapshot()
            actions = self.handle(event)
            if not is_changed:  # so a node need not journal such a sample
                assert actions == []
                assert machine.snapshot() == msgspec.structs.replace(before, turn=before.turn + 1)

    @rule(gpu=devices, xid=st.sampled_from([13, 43, 48, 63, 79, 4000]), pick=picks, known=st.booleans())
    def xid(self, gpu: int, xid: int, pick: int, known: bool) -> None:
        slot = self.pick(pick) if known else None
        if slot is None:
            self.handle(GpuFaulted(gpu, xid))
        else:
            self.handle(GpuFaulted(self.tenants()[slot].grant.gpu, xid, slot, self.held[slot].generation))

    @rule(pick=picks, code=st.sampled_from([2, 700, 805, 46]), source=st.sampled_from(["cuda", "signal", "nobody"]))
    def fault(self, pick: int, code: int, source: str) -> None:
        if (slot := self.pick(pick)) is not None:
            self.handle(TenantFaulted(slot, self.held[slot].generation, source, code))

    @rule(pick=picks, stale=st.booleans())
    def hang(self, pick: int, stale: bool) -> None:
        if (slot := self.pick(pick)) is not None:
            actions = self.handle(TenantHung(slot, self.held[slot].generation - stale, "gemm", 10, 5000))
            assert not actions or self.tenants()[slot].lifecycle.phase is K

    @rule(gpu=devices, back=st.sampled_from([True, True, True, False]))
    def lose_or_find_a_device(self, gpu: int, back: bool) -> None:
        self.handle(GpuRecovered(gpu) if back else GpuLost(gpu, "fell off the bus"))
        if not back:
            for tenant in self.tenants().values():
                assert tenant.grant.gpu != gpu or tenant.lifecycle.phase in (D, T, F, K)

    @rule(gpu=devices, is_ready=st.sampled_from([True, True, False]))
    def mps(self, gpu: int, is_ready: bool) -> None:
        self.handle(MpsStatusChanged(gpu, is_ready))

    @rule(step=steps, pick=picks)
    def drained(self, step: int, pick: int) -> None:
        if (slot := self.pick(pick, (D, F, G))) is not None:
            self.now += step
            self.handle(TenantDrained(slot, self.held[slot].generation))

    @rule(pick=picks, wanted=st.sampled_from([50, 400]), each=st.sampled_from([0, 100, 400]))
    def want_memory(self, pick: int, wanted: int, each: int) -> None:
        if (slot := self.pick(pick)) is not None:
            online = {other: tenant for other, tenant in self.tenants().items() if tenant.grant.kind is Kind.ONLINE}
            held = tuple((other, each) for other in sorted(self.held))
            self.handle(MemoryRequested(slot, self.held[slot].generation, wanted, held))
            after = self.tenants()
            assert all(after[other].lifecycle == tenant.lifecycle for other, tenant in online.items())

    @rule(pick=picks, uid=st.sampled_from([1000, 1001]), owner=st.booleans(), grace_ns=st.sampled_from([0, 1, 50]))
    def evict(self, pick: int, uid: int, owner: bool, grace_ns: int) -> None:
        if (slot := self.pick(pick)) is not None:
            name = self.tenants()[slot].name
            *_, answer = self.handle(EvictionRequested(9, uid, owner, (name,), grace_ns))
            if uid != 1000 and not owner:
                assert isinstance(answer, Refuse)
                assert answer.reject.reason is Reason.NOT_YOURS
            else:
                assert self.tenants()[slot].lifecycle.phase in (D, T, F, K)
                assert not self.tenants()[slot].lifecycle.may_restart

    @rule(pick=picks, grace_ns=st.sampled_from([0, 1]))
    def quit(self, pick: int, grace_ns: int) -> None:
        if (slot := self.pick(pick, connected=True)) is not None:
            self.handle(QuitRequested(self.held[slot].peer, grace_ns))
            assert self.tenants()[slot].lifecycle.phase in (D, T, F, K)

    @rule(pick=picks, paused=st.booleans())
    def pause(self, pick: int, paused: bool) -> None:
        if (slot := self.pick(pick)) is not None:
            self.handle(TenantsPaused(9, 1000, True, (self.tenants()[slot].name,), all_offline=False, paused=paused))

    @rule(step=steps, pick=picks, ok=st.sampled_from([True, True, False]), in_time=st.sampled_from([True, True, False]))
    def answer(self, step: int, pick: int, ok: bool, in_time: bool) -> None:
        """Report the result of a suspension or restore, or a result that was not requested."""
        slot = self.pick(pick, (G, B) if in_time else (), connected=True)
        if slot is None:
            return
        self.now += step
        peer, phase = self.held[slot].peer, self.tenants()[slot].lifecycle.phase
        self.handle(TenantSuspended(peer, ok) if phase is G else TenantRestored(peer, ok, "no room" * (not ok)))

    @precondition(lambda self: self.pick(0, (G,), connected=True) is not None)
    @rule(pick=picks, back=st.booleans())
    def begin_suspension(self, pick: int, back: bool) -> None:
        slot = self.pick(pick, (G,), connected=True)
        assert slot is not None
        self.handle(TenantDrained(slot, self.held[slot].generation))
        free_bytes = self.machines[0].plan().capacity(self.tenants()[slot].grant.gpu).memory_free_bytes
        actions = self.handle(TenantSuspended(self.held[slot].peer, ok=True))
        suspended = self.tenants()[slot]
        assert suspended.lifecycle.phase is S
        newcomers = [action.grant for action in actions if isinstance(action, IssueGrant)]
        capacity = self.machines[0].plan().capacity(suspended.grant.gpu)
        taken_bytes = sum(grant.memory_bytes for grant in newcomers)
        assert capacity.memory_free_bytes == free_bytes + suspended.spec.memory_bytes - taken_bytes
        if back:
            self.restore_suspended(0, make_room=True)

    @precondition(lambda self: self.pick(0, (S,), connected=True) is not None)
    @rule(pick=picks, make_room=st.booleans())
    def restore_suspended(self, pick: int, make_room: bool) -> None:
        slot = self.pick(pick, (S,), connected=True)
        assert slot is not None
        gpu = self.tenants()[slot].grant.gpu
        for other, tenant in self.tenants().items() if make_room else ():
            if tenant.grant.gpu == gpu and other != slot and self.held[other].peer != NO_PEER:
                self.handle(TenantLeft(self.held[other].peer, "exit 0"))
        self.handle(MpsStatusChanged(gpu, is_ready=True))
        self.handle(GpuRecovered(gpu))
        for _ in range(5):
            self.now += LIMITS.make_room_ns
            self.handle(GpuSampled(gpu, CALM))

    @rule(pick=picks, restarts=st.integers(1, 3))
    def restart_program(self, pick: int, restarts: int) -> None:
        if (slot := self.pick(pick, connected=True)) is not None:
            self.handle(TenantRestarted(self.held[slot].peer, "exit 1", restarts))
            assert self.tenants()[slot].restarts == restarts

    @rule(step=steps, pick=picks, lost=st.booleans())
    def end(self, step: int, pick: int, lost: bool) -> None:
        if (slot := self.pick(pick, connected=True)) is not None:
            self.now += step
            peer = self.held[slot].peer
            self.handle(PeerLost(peer) if lost else TenantLeft(peer, "exit 0"))
            assert slot not in self.held or self.held[slot].peer != peer

    @precondition(lambda self: self.waiting_peers)
    @rule(pick=picks, lost=st.booleans())
    def stop_waiting(self, pick: int, lost: bool) -> None:
        peer = sorted(self.waiting_peers)[pick % len(self.waiting_peers)]
        self.waiting_peers.discard(peer)
        self.handle(PeerLost(peer) if lost else TenantLeft(peer, "exit 0"))
        assert all(join.peer != peer for join in self.machines[0].snapshot().waiting)

    @rule(step=steps, pick=picks)
    def resume(self, step: int, pick: int) -> None:
        disconnected = [slot for slot, holder in sorted(self.held.items()) if holder.peer == NO_PEER]
        if disconnected:
            self.now += step
            slot = disconnected[pick % len(disconnected)]
            holder = self.held[slot]
            actions = self.handle(TenantResumed(self.number(), holder.pid, 1000, slot, holder.generation))
            assert any(isinstance(action, IssueGrant) and action.grant.slot == slot for action in actions)

    @precondition(lambda self: self.machines[0].next_wakeup() is not None)
    @rule(late=st.sampled_from([0, 0, 0, 10, 40]))
    def wake(self, late: int) -> None:
        due = self.machines[0].next_wakeup()
        assert due is not None
        self.now = max(self.now, due) + late
        before = self.machines[0].snapshot()
        self.handle(TimerFired())
        after = self.machines[0].snapshot()
        assert (before.tenants, before.waiting, before.disconnected_until_ns) != (
            after.tenants,
            after.waiting,
            after.disconnected_until_ns,
        )

    @rule(step=steps)
    def restart(self, step: int) -> None:
        self.now += step
        recovered = NodeMachine()
        replay(recovered, self.segment)
        self.machines[0] = recovered
        self.held = {slot: holder._replace(peer=NO_PEER) for slot, holder in self.held.items()}
        self.waiting_peers.clear()
        phases = {slot: tenant.lifecycle.phase for slot, tenant in self.tenants().items()}
        self.handle(NodeStarted(recovered.settings, "1", self.now))
        after = {slot: tenant.lifecycle.phase for slot, tenant in self.tenants().items()}
        assert {slot for slot in after if after[slot] != phases[slot]} <= {
            slot for slot, tenant in self.tenants().items() if tenant.grant.kind is Kind.OFFLINE
        }

    @rule()
    def snapshot(self) -> None:
        head = NodeTurn(self.now, self.machines[0].snapshot(), [])
        restored = NodeMachine()
        assert restored.handle(head.event, now=head.now) == []
        self.machines = [*self.machines[:2], restored]
        self.segment = [head]
        self.turns.append(head)

    # -- what is always true ---------------------------------------------------------------------------------------

    @invariant()
    def waiting_joins_are_those_without_an_answer(self) -> None:
        assert {join.peer for join in self.machines[0].snapshot().waiting} == self.waiting_peers

    @invariant()
    def all_machines_are_equal(self) -> None:
        first, *others = self.machines
        assert all(other.snapshot() == first.snapshot() for other in others)
        assert all(other.next_wakeup() == first.next_wakeup() for other in others)

    def teardown(self) -> None:
        """Without further events exiting tenants are killed and joins answered; the journal reproduces the state."""
        for _ in range(80):
            due = self.machines[0].next_wakeup()
            if due is None or due > self.now + 10**8:
                break
            self.wake(0)
        else:
            raise AssertionError("a node without further events has endless deadlines")
        phases = [tenant.lifecycle.phase for tenant in self.tenants().values()]
        assert set(phases) <= {R, K, S}
        assert not self.machines[0].snapshot().waiting
        for turns in (self.turns, self.segment):
            content = MAGIC + b"".join(encode_turn(turn.now, turn.event, turn.actions) for turn in turns)
            read = list(NodeJournalReader(io.BytesIO(content).read))
            assert read == turns
            machine = NodeMachine()
            assert replay(machine, read) == len(turns)
            assert machine.snapshot() == self.machines[0].snapshot()


ProtectedNodeMachine.TestCase.settings = settings(max_examples=examples(40, 800), stateful_step_count=50, deadline=None)
TestProtectedNode = ProtectedNodeMachine.TestCase
