"""Profiles of timelines agree with their activities."""

from __future__ import annotations

import csv
import io
import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.predict.gap_fill import predict_fill
from cotenant.profile.kineto import read_kineto
from cotenant.profile.profile import HISTORY
from cotenant.workload.kernel import KernelIdentity, WorkKind
from cotenant.workload.kernel_table import LIST_COLUMNS, TIMELINE_COLUMNS, read_kernels
from cotenant.workload.launch_files import image_name, image_of, script_of
from cotenant.workload.timeline import Activity, Timeline, profile_of, timeline_of

names = st.sampled_from(["gemm", "relu", "void at::{lambda()#1} kernel<float, 4>(int)"])
kernels = st.builds(
    KernelIdentity,
    names,
    st.tuples(st.integers(1, 99), st.integers(1, 3), st.just(1)),
    st.tuples(st.integers(1, 256), st.integers(1, 4), st.just(1)),
    st.sampled_from([0, 2048]),
)
copies = st.sampled_from(["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH", "Memcpy DtoD"]).map(
    lambda name: KernelIdentity(name, (1, 1, 1), (1, 1, 1), 0, WorkKind.COPY)
)
activities = st.builds(
    Activity,
    kernels | copies,
    st.integers(0, 2),
    st.integers(0, 10**7),
    st.integers(0, 10**5),
    st.none() | st.integers(0, 10**7),
    st.sampled_from([0, 32, 255]),
)
timelines = st.lists(activities, min_size=1, max_size=30).map(lambda drawn: timeline_of("task", "V100", 80, drawn))


def busy_by_instants(timeline: Timeline) -> int:
    """Return the union of all activities, computed interval by interval."""
    instants = sorted(
        {activity.start_ns for activity in timeline.activities} | {activity.end_ns for activity in timeline.activities}
    )
    return sum(
        later - earlier
        for earlier, later in itertools.pairwise(instants)
        if any(activity.start_ns <= earlier and later <= activity.end_ns for activity in timeline.activities)
    )


@given(timelines)
def test_busy_and_idle_time_add_up_to_the_span(timeline: Timeline) -> None:
    profile = profile_of(timeline)
    assert profile.busy_ns == busy_by_instants(timeline)
    assert profile.busy_ns + profile.idle_ns == profile.span_ns
    assert sum(timing.gap.total for timing in profile.timings) == profile.idle_ns


@given(timelines)
def test_every_activity_and_interval_is_counted_once(timeline: Timeline) -> None:
    profile = profile_of(timeline)
    assert sum(timing.device.count for timing in profile.timings) == len(timeline.activities)
    assert sum(timing.device.total for timing in profile.timings) == sum(
        activity.device_ns for activity in timeline.activities
    )
    launches = [activity.launch_ns for activity in timeline.launches() if activity.launch_ns is not None]
    assert sum(interval.host.count for interval in profile.intervals) == max(len(launches) - 1, 0)
    assert sum(interval.host.total for interval in profile.intervals) == (launches[-1] - launches[0] if launches else 0)
    assert all(1 <= len(interval.after) <= HISTORY for interval in profile.intervals)


@given(timelines, st.integers(1_000, 10**6))
def test_predicted_fill_never_exceeds_the_idle_time(timeline: Timeline, kernel_ns: int) -> None:
    fill = predict_fill(profile_of(timeline), kernel_ns)
    assert 0 <= fill.filled_ns <= 1.01 * fill.idle_ns + 1  # histogram buckets are 1 % wide
    assert fill.cost_ns >= 0
    assert fill.filled_ns == 0 or fill.idle_ns > 0


def gaps_of(gaps_ns: list[int]) -> Timeline:
    """Return a timeline of one kernel with these gaps."""
    kernel, at_ns, kernels_ = KernelIdentity("gemm", (80, 1, 1), (256, 1, 1)), 0, []
    for gap_ns in (*gaps_ns, 0):
        kernels_.append(Activity(kernel, 0, at_ns, 20_000, at_ns))
        at_ns += 20_000 + gap_ns
    return timeline_of("task", "V100", 80, kernels_)


def test_pause_after_each_request_is_distinguished_from_gaps() -> None:
    fill = predict_fill(profile_of(gaps_of(([30_000] * 9 + [10_000_000]) * 20)), 50_000)
    assert fill.filled_ns > 0.95 * 20 * 10_000_000
    assert fill.cost_ns == 20 * 25_000


def test_even_gaps_are_filled_with_the_kernels_that_fit() -> None:
    profile = profile_of(gaps_of([100_000] * 50))
    fits = predict_fill(profile, 30_000)
    assert fits.filled_ns in (50 * 60_000, 50 * 90_000)
    assert predict_fill(profile, 200_000).filled_ns == 0


@given(timelines)
def test_table_of_a_timeline_round_trips(timeline: Timeline) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    text.write(TIMELINE_COLUMNS + "\n")
    for number, activity in enumerate(timeline.activities):
        kind = {WorkKind.KERNEL: "kernel", WorkKind.COPY: "memcpy"}[activity.kernel.work]
        grid, block = ("x".join(map(str, extent)) for extent in (activity.kernel.grid, activity.kernel.block))
        launch = "" if activity.launch_ns is None else f"{activity.launch_ns / 1000:.3f}"
        start, duration = f"{activity.start_ns / 1000:.3f}", f"{activity.device_ns / 1000:.3f}"
        shape = [grid, block, activity.registers, activity.kernel.shared_bytes, "", "", "", activity.kernel.function]
        writer.writerow([number, kind, activity.stream, start, duration, 0, launch, "", *shape])
    assert read_kernels(text.getvalue().encode(), "task", "here").activities == timeline.activities


@given(timelines)
def test_trace_of_a_timeline_round_trips(timeline: Timeline) -> None:
    events = []
    for number, activity in enumerate(timeline.activities):
        args: dict[str, Any] = {
            "device": 0,
            "stream": activity.stream,
            "correlation": number,
            "registers per thread": activity.registers,
        }
        args |= {
            "grid": activity.kernel.grid,
            "block": activity.kernel.block,
            "shared memory": activity.kernel.shared_bytes,
        }
        category = {WorkKind.KERNEL: "kernel", WorkKind.COPY: "gpu_memcpy"}[activity.kernel.work]
        times = {"ts": 1.7e15 + activity.start_ns // 1000, "dur": activity.device_ns / 1000}
        events.append({"ph": "X", "cat": category, "name": activity.kernel.function, "args": args} | times)
        if activity.launch_ns is not None:
            host = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": number}}
            events.append(host | {"ts": 1.7e15 + activity.launch_ns // 1000, "dur": 4})
    trace = {"traceEvents": events, "deviceProperties": [{"id": 0, "name": "V100", "numSms": 80}]}
    (read,) = read_kineto(json.dumps(trace).encode(), "task", "here")
    assert (read.task, read.device, read.sms) == ("task", "V100", 80)
    expected = timeline_of(
        "task",
        "V100",
        80,
        [
            Activity(
                activity.kernel,
                activity.stream,
                (1_700_000_000_000_000 + activity.start_ns // 1000) * 1000,
                activity.device_ns,
                None if activity.launch_ns is None else (1_700_000_000_000_000 + activity.launch_ns // 1000) * 1000,
                activity.registers,
            )
            for activity in timeline.activities
        ],
    )
    assert sorted(read.activities, key=repr) == sorted(expected.activities, key=repr)


@given(timelines)
def test_image_and_script_name_the_same_kernels(timeline: Timeline) -> None:
    image, script = image_of(timeline), script_of(timeline)
    declared = [line.split()[1] for line in image.splitlines() if line.startswith("kernel ")]
    launched = [line.split() for line in script.splitlines() if not line.startswith("#")]
    assert len(launched) == len(timeline.activities)
    assert len(declared) == len(set(declared))
    assert {words[0] for words in launched if not words[0].startswith("@")} == set(declared)
    device_ns = sum(int(words[3]) for words in launched if not words[0].startswith("@"))
    assert device_ns == sum(
        activity.device_ns for activity in timeline.activities if activity.kernel.work is WorkKind.KERNEL
    )
    assert all(int(words[-2]) >= 0 for words in launched)
    assert "#" not in image_name(timeline.activities[0].kernel)


@given(st.text(max_size=100) | st.text(max_size=60).map(lambda text: f"{TIMELINE_COLUMNS}\n{text}"))
@example(f"{TIMELINE_COLUMNS}\n0,kernel,7,nan,1,0,0,0,1x1x1,1x1x1,1,1,1,1,1,x")
@example(f"{TIMELINE_COLUMNS}\n0,kernel,7,1e30,1,0,0,0,1x1x1,1x1x1,1,1,1,1,1,x")
@example(f"{LIST_COLUMNS}\nconv,7,0,1,1")
@example(f"{LIST_COLUMNS}\nconv")
def test_invalid_table_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        read_kernels(text.encode("utf-8", "surrogatepass"), "task", "here")


@given(st.binary(max_size=60) | st.just(b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":1,"dur":-1}]}'))
@example(b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":1e999,"dur":1}]}')
@example(b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":1,"dur":1,"args":{"grid":[0,1,1]}}]}')
@example(b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":1,"dur":1,"args":7}]}')
@example(b'{"traceEvents":[]}')
def test_invalid_trace_is_rejected(data: bytes) -> None:
    with pytest.raises(ConfigError):
        read_kineto(data, "task", "here")


def test_kernel_list_is_read_as_back_to_back_launches() -> None:
    text = f"{LIST_COLUMNS}\nconv<a, b>,1,0,392,1000\nnorm,0,0,8,500\nnorm,0,0,8,700\ncopy,-1,0,1,10\n"
    profile = profile_of(read_kernels(text.encode(), "net", "here"))
    assert (profile.span_ns, profile.idle_ns) == (2210, 0)
    assert [timing.memory_bound for timing in profile.timings] == [False, True, None]
    assert profile.timings[0].kernel.function == "conv<a, b>"
    assert profile.timings[1].mean_device_ns == 600
    assert [timing.sms_needed(80) for timing in profile.timings] == [80, 8, 1]
