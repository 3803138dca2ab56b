"""Hypothesis strategies for all events and actions of the node."""

from hypothesis import strategies as st

from cotenant.gate.grant import Grant, Kind
from cotenant.gate.rules import GateEntry, GatePolicy, GateRules, Limit
from cotenant.node.config.access import OperatorsConfig
from cotenant.node.config.control import ControlConfig
from cotenant.node.config.file import Config, DirectoriesConfig, GpuConfig, NodeConfig, RunConfig
from cotenant.node.config.protection import ProtectConfig
from cotenant.node.journal import NodeTurn
from cotenant.node.model.action import (
    Action,
    Confirm,
    IssueGrant,
    KillTenant,
    Refuse,
    RemoveEntry,
    ReportGpuHealth,
    RestartMps,
    RestoreTenant,
    Revoke,
    SetNeighbourCount,
    SetOnlineShare,
    SetTenantTable,
    SignalTenant,
    Stop,
    SuspendTenant,
    UpsertEntry,
)
from cotenant.node.model.admission import Reason, Reject
from cotenant.node.model.control import AdjustCause, Adjustment, ControlLimits, OnlineShareSetpoint
from cotenant.node.model.event import (
    SLOTS_LIMIT,
    DisruptionAnnounced,
    Event,
    EvictionRequested,
    GateChange,
    GpuFaulted,
    GpuLost,
    GpuRecovered,
    GpuSampled,
    GpusFound,
    MemoryRequested,
    MpsStatusChanged,
    NodeRestored,
    NodeSettings,
    NodeStarted,
    NodeStopping,
    ObjectiveChanged,
    OnlineFirst,
    OnlineShareProposed,
    PeerLost,
    PriorityChanged,
    QuitRequested,
    RulesChanged,
    ShareChanged,
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
    WaitingJoin,
)
from cotenant.node.model.fault import Source
from cotenant.node.model.gpu import Gpu
from cotenant.node.model.protection import (
    EVICTIONS_LIMIT,
    Block,
    ExitPhase,
    GpuSample,
    GpuWatch,
    Health,
    Lifecycle,
    OnPressure,
)
from cotenant.node.model.tenant import Departure, Tenant, TenantSpec, TenantView
from cotenant.predict.usage import WIDTHS_LIMIT, TaskUse
from cotenant.units.histogram import Histogram, Recorder
from cotenant.units.share import WHOLE_PPM
from cotenant.units.toml import DurationNs, ShareOfWhole, SizeBytes

LARGEST = (1 << 63) - 1

amounts = st.integers(0, LARGEST)
instants = st.integers(0, LARGEST)
shares = st.integers(0, WHOLE_PPM)
small = st.integers(0, 10_000)
# All texts that UTF-8 can encode: no lone surrogates.
texts = st.text(st.characters(codec="utf-8"), max_size=40)
names = st.from_regex(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})?", fullmatch=True)


task_uses = st.builds(
    TaskUse,
    shares,
    st.lists(st.tuples(shares, shares), max_size=WIDTHS_LIMIT).map(tuple),
    *(shares, amounts, amounts, amounts, amounts, shares),
)


@st.composite
def specs(draw: st.DrawFn) -> TenantSpec:
    kind = draw(st.sampled_from(Kind))
    return TenantSpec(
        kind,
        draw(st.integers(0, 9)),
        draw(names),
        draw(amounts) if kind is Kind.ONLINE else 0,
        draw(amounts),
        draw(shares),
        draw(texts),
        draw(texts),
        draw(st.sampled_from(["", "0", "soft:1", "GPU-0f"])),
        draw(st.sampled_from(OnPressure)),
        draw(amounts),
        draw(st.sampled_from(Limit)),
        draw(st.none() | task_uses),
        draw(st.sampled_from(["", "0f1e-22", "0f1e-22/33-44"])),
    )


grant = st.builds(
    Grant, small, small, st.sampled_from(Kind), st.integers(0, 9), shares, amounts, amounts, st.integers(-1, 7)
)
gpus = st.builds(Gpu, texts, amounts, st.sampled_from([(), ("soft:0",), ("GPU-0f1e", "0")]))
gate_entries = st.builds(
    GateEntry,
    *(small, small, st.integers(0, 9), st.booleans(), st.booleans(), shares, st.booleans(), shares, st.booleans()),
)
gate_policies = st.sampled_from(GatePolicy)
gate_rules = st.builds(
    GateRules,
    gate_policies,
    *(amounts, shares, amounts, amounts, shares),
    st.lists(gate_entries, max_size=3).map(tuple),
)
gate_changes = st.builds(
    GateChange,
    st.none() | gate_policies,
    *(st.none() | values for values in (amounts, shares, amounts, amounts, shares)),
)
slot_shares = st.lists(st.tuples(small, shares), max_size=3).map(tuple)
adjustments = st.builds(
    Adjustment, small, shares, st.sampled_from(AdjustCause), texts, slot_shares, st.integers(-1, 9), small
)
control_limits = st.builds(
    ControlLimits, amounts, st.sampled_from(["feedback", "off"]), *(shares, shares, shares, shares)
)
node_settings = st.builds(
    NodeSettings,
    st.integers(0, SLOTS_LIMIT),
    amounts,
    amounts,
    st.sampled_from(["spread", "pack", "predict"]),
    st.sampled_from(["reserve", "overcommit"]),
    st.lists(gpus, max_size=3).map(tuple),
    gate_rules,
    control=control_limits,
)
optional_amounts = st.integers(-1, LARGEST)
gpu_samples = st.builds(GpuSample, *(optional_amounts for _ in range(5)), amounts, amounts)
gpu_watches = st.builds(
    GpuWatch,
    st.sampled_from(Health),
    instants,
    texts,
    *(small, small, small),
    st.lists(instants, max_size=EVICTIONS_LIMIT).map(tuple),
    optional_amounts,
    st.lists(st.sampled_from(Block), unique=True).map(tuple),
)
lifecycles = st.builds(
    Lifecycle,
    st.sampled_from(ExitPhase),
    texts,
    *(small, instants, optional_amounts, amounts),
    *(st.booleans(), st.booleans(), st.booleans()),
    amounts,
)
tenants = st.builds(Tenant, names, grant, specs(), small, small, instants, st.booleans(), lifecycles, small)
departures = st.builds(Departure, tenants, texts, instants)
views = st.builds(TenantView, tenants, st.booleans())
rejects = st.builds(Reject, st.sampled_from(Reason), texts, amounts)
sources = st.sampled_from([*(source.value for source in Source), "nobody"])

events: st.SearchStrategy[Event] = st.one_of(
    st.builds(NodeStarted, node_settings, texts, instants),
    st.builds(
        NodeRestored,
        node_settings,
        small,
        st.lists(small, max_size=5).map(tuple),
        st.lists(st.tuples(st.integers(-1, 99), tenants), max_size=2).map(tuple),
        st.lists(departures, max_size=2).map(tuple),
        st.integers(-1, LARGEST),
        st.integers(-1, LARGEST),
        st.none() | gate_rules,
        st.lists(gpu_watches, max_size=2).map(tuple),
        st.lists(st.builds(WaitingJoin, small, small, small, specs(), small, instants), max_size=2).map(tuple),
        st.lists(st.builds(OnlineFirst, small, st.just(("a",)), optional_amounts), max_size=2).map(tuple),
        st.lists(st.builds(OnlineShareSetpoint, small, shares, slot_shares), max_size=2).map(tuple),
    ),
    st.builds(GpuSampled, small, gpu_samples),
    st.builds(GpuFaulted, small, small, st.integers(-1, 9), small),
    st.builds(GpuLost, small, texts),
    st.builds(GpuRecovered, small),
    st.builds(TenantFaulted, small, small, sources, small),
    st.builds(TenantHung, small, small, texts, amounts, amounts),
    st.builds(TenantDrained, small, small),
    st.builds(MemoryRequested, small, small, amounts, st.lists(st.tuples(small, amounts), max_size=3).map(tuple)),
    st.builds(EvictionRequested, small, small, st.booleans(), st.lists(names, max_size=3).map(tuple), amounts),
    st.builds(DisruptionAnnounced, small, small, st.booleans(), small, small, st.booleans(), amounts),
    st.builds(QuitRequested, small, amounts),
    st.builds(TenantSuspended, small, st.booleans(), texts),
    st.builds(TenantRestored, small, st.booleans(), texts),
    st.builds(TenantRestarted, small, texts, small),
    st.builds(MpsStatusChanged, small, st.booleans(), texts),
    st.builds(TenantJoined, small, small, small, specs()),
    st.builds(TenantResumed, small, small, small, small, small),
    st.builds(TenantLeft, small, texts),
    st.builds(PeerLost, small),
    st.builds(
        TenantsPaused,
        small,
        small,
        st.booleans(),
        st.lists(names, max_size=3).map(tuple),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(PriorityChanged, small, small, st.booleans(), names, st.integers(0, 9)),
    st.builds(ShareChanged, small, small, st.booleans(), names, st.none() | shares, st.none() | st.sampled_from(Limit)),
    st.builds(ObjectiveChanged, small, small, st.booleans(), names, amounts),
    st.builds(RulesChanged, small, st.booleans(), gate_changes),
    st.builds(OnlineShareProposed, adjustments),
    st.builds(GpusFound, st.lists(gpus, max_size=3).map(tuple)),
    st.just(TimerFired()),
    st.builds(NodeStopping, texts),
)
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(IssueGrant, small, st.integers(-1, 99), names, grant, small),
    st.builds(SetNeighbourCount, small, st.integers(-1, 9) | st.lists(small, max_size=5).map(tuple), small),
    st.builds(Refuse, small, small, rejects),
    st.builds(Revoke, small, st.integers(-1, 99), names, small, small, texts),
    st.builds(SetTenantTable, small, small, gate_rules),
    st.builds(UpsertEntry, small, small, gate_entries),
    st.builds(RemoveEntry, small, small, small),
    st.builds(Confirm, small, small, st.lists(names, max_size=3).map(tuple), gate_rules),
    st.builds(
        SignalTenant, small, st.integers(-1, 9), small, small, st.sampled_from(["term", "kill"]), texts, st.booleans()
    ),
    st.builds(KillTenant, small, st.integers(-1, 9), small, small, texts),
    st.builds(SuspendTenant, small, small, small, texts),
    st.builds(RestoreTenant, small, small, small),
    st.builds(ReportGpuHealth, small, small, gpu_watches),
    st.builds(SetOnlineShare, small, adjustments, shares),
    st.builds(RestartMps, small, small),
    st.builds(Stop, small, texts),
)
turns = st.builds(NodeTurn, instants, events, st.lists(actions, max_size=3))


def histogram_of(values: list[int]) -> Histogram:
    recorder = Recorder()
    for value in values:
        recorder.record(value)
    return recorder.histogram()


histograms = st.lists(st.integers(0, 1 << 50), max_size=20).map(histogram_of)

durations_in_config = amounts.map(DurationNs)
sizes_in_config = amounts.map(SizeBytes)
flag_lists = st.lists(st.from_regex(r"[a-z0-9_.-]{1,8}", fullmatch=True), max_size=3).map(tuple)
configs = st.builds(
    Config,
    directories=st.builds(DirectoriesConfig, texts, texts),
    node=st.builds(
        NodeConfig,
        slots=st.integers(1, SLOTS_LIMIT),
        grace=durations_in_config,
        idle_exit=durations_in_config,
        place=st.sampled_from(["spread", "pack"]),
        admit=st.sampled_from(["reserve", "overcommit"]),
        gate=gate_policies.map(lambda policy: policy.value),
        bound=durations_in_config,
        delay=shares.map(ShareOfWhole),
        patience=durations_in_config,
        switch=durations_in_config,
        spin=shares.map(ShareOfWhole),
        find=st.sampled_from(["yes", "no"]),
        journal_limit=sizes_in_config,
    ),
    operators=st.builds(OperatorsConfig, flag_lists, flag_lists),
    run=st.builds(
        RunConfig,
        kind=st.sampled_from(Kind),
        priority=st.none() | st.integers(0, 9),
        slo=durations_in_config,
        memory=sizes_in_config,
        share=shares.map(ShareOfWhole),
        name=names,
        task=texts,
    ),
    protect=st.builds(
        ProtectConfig,
        watch_period=durations_in_config,
        memory_over=shares.map(ShareOfWhole),
        clock_low=shares.map(ShareOfWhole),
        high_samples=st.integers(1, 10_000),
        backoff_cap=durations_in_config,
    ),
    control=st.builds(
        ControlConfig,
        adjust=st.sampled_from(["feedback", "fixed", "aimd", "off"]),
        adjust_period=durations_in_config,
        slo_headroom=shares.map(ShareOfWhole),
        min_online_share=shares.map(ShareOfWhole),
    ),
    gpu=st.lists(st.builds(GpuConfig, name=texts.filter(bool), memory=sizes_in_config), max_size=3).map(tuple),
)
