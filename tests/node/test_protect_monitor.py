"""The health monitor: a golden log of every transition, then properties of any samples."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.node.config.file import Config, decode_config, encode_config, validate
from cotenant.node.config.protection import ProtectConfig
from cotenant.node.model.protection import EVICTIONS_LIMIT, GpuSample, GpuWatch, Health, ProtectLimits
from cotenant.node.policy.protect.backoff import delay_ns
from cotenant.node.policy.protect.monitor import SampleLevel, assess, disabled, observe, recovered
from cotenant.units.instant import NEVER, SECOND_NS
from cotenant.units.toml import DurationNs, ShareOfWhole
from tests.support.monitor_log import GIB, GOOD, LIMITS, SILENT, sample, transitions
from tests.support.tools import ROOT

OVER = sample(used=99)
ppm = st.sampled_from([-1, 0, 300_000, 500_001, 600_001, 700_000, 900_001, 960_000, 990_000, 1_000_000])
samples = st.builds(
    GpuSample,
    *(ppm, ppm, ppm),
    st.sampled_from([-1, 0, 50, 91, 96, 99, 100, 120]).map(lambda used: used * GIB if used > 0 else used),
    st.sampled_from([-1, 0, 100 * GIB]),
    *(st.sampled_from([0, GIB]), st.sampled_from([0, GIB])),
)
limits = st.builds(
    ProtectLimits,
    samples=st.integers(1, 4),
    over_samples=st.integers(1, 4),
    calm_samples=st.integers(1, 5),
    init_samples=st.integers(1, 3),
    backoff_ns=st.integers(0, 5).map(lambda seconds: seconds * SECOND_NS),
    backoff_cap_ns=st.integers(5, 20).map(lambda seconds: seconds * SECOND_NS),
    backoff_window_ns=st.integers(0, 60).map(lambda seconds: seconds * SECOND_NS),
)
STEPS = {
    Health.INIT: {Health.HEALTHY, Health.UNHEALTHY},
    Health.HEALTHY: {Health.UNHEALTHY},
    Health.UNHEALTHY: {Health.HEALTHY, Health.OVERLIMIT},
    Health.OVERLIMIT: {Health.UNHEALTHY},
}


def observe_all(watch: GpuWatch, measured: list[GpuSample], limit: ProtectLimits, start: int = 0) -> list[GpuWatch]:
    """Return the state of the device after each of the samples, one per second."""
    watches = []
    for second, reading in enumerate(measured, start):
        watch = observe(watch, reading, limit, second * SECOND_NS)
        watches.append(watch)
    return watches


def test_scenario_produces_the_golden_log() -> None:
    golden = (ROOT / "scenarios" / "monitor.log").read_text(encoding="utf-8")
    assert "\n".join(transitions()) + "\n" == golden


def test_scenario_covers_every_transition() -> None:
    covered = {tuple(line.split(": ", 1)[1].split(",")[0].split(" -> ")) for line in transitions() if " -> " in line}
    required = {(before.value, after.value) for before, targets in STEPS.items() for after in targets}
    assert covered >= required | {("overlimit", "disabled"), ("disabled", "init")}


@given(st.lists(samples, max_size=60), limits)
def test_each_transition_needs_consecutive_samples(measured: list[GpuSample], limit: ProtectLimits) -> None:
    """No state ends before the number of samples that its transition requires, which bounds oscillation."""
    watch, entered = GpuWatch(), 0
    needed = {Health.UNHEALTHY: limit.samples, Health.OVERLIMIT: limit.over_samples, Health.HEALTHY: limit.calm_samples}
    for index, after in enumerate(observe_all(watch, measured, limit)):
        if after.health is not watch.health:
            assert after.health in STEPS[watch.health]
            required = limit.init_samples if watch.health is Health.INIT else needed[after.health]
            if watch.health is Health.INIT and after.health is Health.UNHEALTHY:
                required = limit.samples
            elif watch.health is Health.OVERLIMIT:
                required = limit.calm_samples
                assert index * SECOND_NS >= watch.until_ns
            assert index + 1 - entered >= required
            assert (after.breaches, after.calm, after.since_ns) == (0, 0, index * SECOND_NS)
            assert after.why
            entered = index + 1
        watch = after


@given(st.lists(samples, max_size=60), limits)
def test_only_overlimit_has_a_backoff_and_it_grows(measured: list[GpuSample], limit: ProtectLimits) -> None:
    before = GpuWatch()
    for after in observe_all(before, measured, limit):
        assert (after.until_ns != NEVER) == (after.health is Health.OVERLIMIT)
        assert len(after.evictions) <= EVICTIONS_LIMIT
        if after.health is Health.OVERLIMIT and before.health is not Health.OVERLIMIT:
            assert after.evictions[-1] == after.since_ns
            recent = [instant for instant in before.evictions if after.since_ns - instant <= limit.backoff_window_ns]
            assert after.until_ns - after.since_ns == delay_ns(
                min(len(recent) + 1, EVICTIONS_LIMIT), limit.backoff_ns, limit.backoff_cap_ns
            )
        else:
            assert after.evictions == before.evictions
        before = after


@given(st.lists(samples, max_size=40), limits, st.sampled_from([GOOD, SILENT]))
def test_calm_samples_heal_every_device_that_responds(
    measured: list[GpuSample], limit: ProtectLimits, calm: GpuSample
) -> None:
    watch = observe_all(GpuWatch(), [SILENT, *measured], limit)[-1]
    longest = limit.backoff_cap_ns // SECOND_NS + 2 * limit.calm_samples + limit.init_samples + 1
    assert observe_all(watch, [calm] * longest, limit, len(measured) + 1)[-1].health is Health.HEALTHY
    lost = disabled(watch, "gone", 7)
    assert {state.health for state in observe_all(lost, [*measured, calm], limit)} == {Health.DISABLED}
    healed = observe_all(recovered(lost, 8), [calm] * limit.init_samples, limit)[-1]
    assert (healed.health, healed.evictions) == (Health.HEALTHY, watch.evictions)


@given(samples)
def test_missing_measurement_never_raises_the_level(reading: GpuSample) -> None:
    level = assess(reading, LIMITS)[0]
    for field in ("utilization_ppm", "sm_activity_ppm", "clock_ppm", "memory_used_bytes", "memory_bytes"):
        assert assess(msgspec.structs.replace(reading, **{field: -1}), LIMITS)[0] <= level


@given(samples)
def test_sample_is_over_only_if_online_and_offline_tenants_share(reading: GpuSample) -> None:
    if not reading.online_memory_bytes or not reading.offline_memory_bytes:
        assert assess(reading, LIMITS)[0] is not SampleLevel.OVER
    busy = GpuSample(1_000_000, 1_000_000, reading.clock_ppm, reading.memory_used_bytes, reading.memory_bytes, GIB, GIB)
    idle = msgspec.structs.replace(busy, utilization_ppm=500_000, sm_activity_ppm=0)
    assert (assess(busy, LIMITS)[0] is SampleLevel.OVER) == (
        assess(idle, LIMITS)[0] is SampleLevel.OVER
    )  # full utilization alone is no harm


def test_repeated_disable_and_recovery_change_nothing() -> None:
    watch = observe_all(GpuWatch(), [OVER] * 10, LIMITS)[-1]
    assert watch.health is Health.OVERLIMIT
    lost = disabled(watch, "gone", 100)
    assert disabled(lost, "again", 200) == lost
    assert recovered(recovered(lost, 300), 400) == recovered(lost, 300)
    assert recovered(watch, 500) == watch


def test_config_sets_every_limit() -> None:
    """Each field of the section sets the limit at the same index, and no other."""
    assert ProtectConfig().limits() == ProtectLimits()
    fields = [
        field for field in ProtectConfig.__struct_fields__ if field not in {"probe", "on_bypass"}
    ]  # neither is a limit
    for index, field in enumerate(fields):
        default = getattr(ProtectConfig(), field)
        changed = ProtectConfig(**{field: type(default)(default + 1)}).limits()
        limit_name = ProtectLimits.__struct_fields__[index]
        assert [
            name for name in ProtectLimits.__struct_fields__ if getattr(changed, name) != getattr(ProtectLimits(), name)
        ] == [limit_name]
        unit = {DurationNs: "_ns", ShareOfWhole: "_ppm"}.get(type(default), "")
        assert limit_name.endswith(unit or ("samples", "factor"))
    assert len(fields) == len(ProtectLimits.__struct_fields__)


def test_limits_survive_encoding_and_decoding() -> None:
    config = decode_config('[protect]\nmemory_over = "99%"\nbackoff = "1min"\n', "here.toml")
    encoded = encode_config(config)
    assert 'memory_over = "99%"' in encoded
    assert decode_config(encoded, "there.toml") == config


@pytest.mark.parametrize(
    "given_values, field",
    [
        ({"memory_calm": ShareOfWhole(960_000)}, "protect.memory_calm"),
        ({"memory_over": ShareOfWhole(940_000)}, "protect.memory_high"),
        ({"clock_over": ShareOfWhole(610_000)}, "protect.clock_over"),
        ({"clock_low": ShareOfWhole(710_000)}, "protect.clock_low"),
        ({"activity_calm": ShareOfWhole(960_000)}, "protect.activity_calm"),
        ({"backoff": DurationNs(901 * SECOND_NS)}, "protect.backoff"),
        ({"watch_period": DurationNs(0)}, "protect.watch_period"),
    ],
)
def test_contradictory_limits_are_refused(given_values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Config(protect=ProtectConfig(**given_values)))
    assert caught.value.field == field
    validate(Config())
