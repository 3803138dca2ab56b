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


def walk(watch: GpuWatch, seen: list[GpuSample], limit: ProtectLimits, start: int = 0) -> list[GpuWatch]:
    """The watch after each of the samples, one a second."""
    walked = []
    for second, one in enumerate(seen, start):
        watch = observe(watch, one, limit, second * SECOND_NS)
        walked.append(watch)
    return walked


def test_the_golden_log_is_what_happens() -> None:
    golden = (ROOT / "scenarios" / "monitor.log").read_text(encoding="utf-8")
    assert "\n".join(transitions()) + "\n" == golden


def test_the_story_takes_every_way_there_is() -> None:
    ways = {tuple(line.split(": ", 1)[1].split(",")[0].split(" -> ")) for line in transitions() if " -> " in line}
    between = {(before.value, after.value) for before, targets in STEPS.items() for after in targets}
    assert ways >= between | {("overlimit", "disabled"), ("disabled", "init")}


@given(st.lists(samples, max_size=60), limits)
def test_each_step_has_its_samples_in_a_row(seen: list[GpuSample], limit: ProtectLimits) -> None:
    """No state is left before as many samples as its way out demands, so nothing changes to and fro faster."""
    watch, entered = GpuWatch(), 0
    needed = {Health.UNHEALTHY: limit.samples, Health.OVERLIMIT: limit.over_samples, Health.HEALTHY: limit.calm_samples}
    for index, after in enumerate(walk(watch, seen, limit)):
        if after.health is not watch.health:
            assert after.health in STEPS[watch.health]
            least = limit.init_samples if watch.health is Health.INIT else needed[after.health]
            if watch.health is Health.INIT and after.health is Health.UNHEALTHY:
                least = limit.samples
            elif watch.health is Health.OVERLIMIT:
                least = limit.calm_samples
                assert index * SECOND_NS >= watch.until_ns
            assert index + 1 - entered >= least
            assert (after.breaches, after.calm, after.since_ns) == (0, 0, index * SECOND_NS)
            assert after.why
            entered = index + 1
        watch = after


@given(st.lists(samples, max_size=60), limits)
def test_only_overlimit_has_a_back_off_and_it_grows(seen: list[GpuSample], limit: ProtectLimits) -> None:
    before = GpuWatch()
    for after in walk(before, seen, limit):
        assert (after.until_ns != NEVER) == (after.health is Health.OVERLIMIT)
        assert len(after.evictions) <= EVICTIONS_LIMIT
        if after.health is Health.OVERLIMIT and before.health is not Health.OVERLIMIT:
            assert after.evictions[-1] == after.since_ns
            lately = [at for at in before.evictions if after.since_ns - at <= limit.backoff_window_ns]
            assert after.until_ns - after.since_ns == delay_ns(
                min(len(lately) + 1, EVICTIONS_LIMIT), limit.backoff_ns, limit.backoff_cap_ns
            )
        else:
            assert after.evictions == before.evictions
        before = after


@given(st.lists(samples, max_size=40), limits, st.sampled_from([GOOD, SILENT]))
def test_calm_heals_everything_but_the_lost(seen: list[GpuSample], limit: ProtectLimits, calm: GpuSample) -> None:
    watch = walk(GpuWatch(), [SILENT, *seen], limit)[-1]
    longest = limit.backoff_cap_ns // SECOND_NS + 2 * limit.calm_samples + limit.init_samples + 1
    assert walk(watch, [calm] * longest, limit, len(seen) + 1)[-1].health is Health.HEALTHY
    gone = disabled(watch, "gone", 7)
    assert {one.health for one in walk(gone, [*seen, calm], limit)} == {Health.DISABLED}
    healed = walk(recovered(gone, 8), [calm] * limit.init_samples, limit)[-1]
    assert (healed.health, healed.evictions) == (Health.HEALTHY, watch.evictions)


@given(samples)
def test_what_a_device_does_not_tell_never_counts(one: GpuSample) -> None:
    level = assess(one, LIMITS)[0]
    for field in ("utilization_ppm", "sm_activity_ppm", "clock_ppm", "memory_used_bytes", "memory_bytes"):
        assert assess(msgspec.structs.replace(one, **{field: -1}), LIMITS)[0] <= level


@given(samples)
def test_no_tenant_is_evicted_without_benefit(one: GpuSample) -> None:
    if not one.online_memory_bytes or not one.offline_memory_bytes:
        assert assess(one, LIMITS)[0] is not SampleLevel.OVER
    busy = GpuSample(1_000_000, 1_000_000, one.clock_ppm, one.memory_used_bytes, one.memory_bytes, GIB, GIB)
    idle = msgspec.structs.replace(busy, utilization_ppm=500_000, sm_activity_ppm=0)
    assert (assess(busy, LIMITS)[0] is SampleLevel.OVER) == (
        assess(idle, LIMITS)[0] is SampleLevel.OVER
    )  # to be full is no harm


def test_lost_and_back_twice_is_once() -> None:
    watch = walk(GpuWatch(), [OVER] * 10, LIMITS)[-1]
    assert watch.health is Health.OVERLIMIT
    gone = disabled(watch, "gone", 100)
    assert disabled(gone, "again", 200) == gone
    assert recovered(recovered(gone, 300), 400) == recovered(gone, 300)
    assert recovered(watch, 500) == watch


def test_the_config_says_every_limit() -> None:
    """Each field of the section sets the limit at the same place, and no other."""
    assert ProtectConfig().limits() == ProtectLimits()
    fields = [field for field in ProtectConfig.__struct_fields__ if field != "probe"]  # not the machine's to decide by
    for place, field in enumerate(fields):
        default = getattr(ProtectConfig(), field)
        changed = ProtectConfig(**{field: type(default)(default + 1)}).limits()
        named = ProtectLimits.__struct_fields__[place]
        assert [
            name for name in ProtectLimits.__struct_fields__ if getattr(changed, name) != getattr(ProtectLimits(), name)
        ] == [named]
        unit = {DurationNs: "_ns", ShareOfWhole: "_ppm"}.get(type(default), "")
        assert named.endswith(unit or ("samples", "factor"))
    assert len(fields) == len(ProtectLimits.__struct_fields__)


def test_the_limits_are_shown_and_read_back() -> None:
    config = decode_config('[protect]\nmemory_over = "99%"\nbackoff = "1min"\n', "here.toml")
    shown = encode_config(config)
    assert 'memory_over = "99%"' in shown
    assert decode_config(shown, "there.toml") == config


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
def test_limits_that_contradict_each_other_are_refused(given_values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Config(protect=ProtectConfig(**given_values)))
    assert caught.value.field == field
    validate(Config())
