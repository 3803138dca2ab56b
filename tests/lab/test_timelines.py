"""Tests of study `timelines`: measured kernel times are compared with the replayed timeline."""

from __future__ import annotations

import itertools

from cotenant.profile.profile import KernelTiming, Profile
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.timeline import Activity, Timeline, profile_of, timeline_of
from cotenant_lab.study.timelines.run import LAUNCHES, PAUSE_NS, agreement, beginning_of, report_of
from tests.profile.test_profile import histogram

CONV = KernelIdentity("void conv<int, 3>", (40, 2, 1), (16, 16, 1), 1024)
NORM = KernelIdentity("norm", (8, 1, 1), (128, 1, 1))


def timeline(count: int = 6, pause_ns: int = 1000) -> Timeline:
    found, at_ns = [], 0
    for number in range(count):
        kernel, lasts_ns = ((CONV, 40_000), (NORM, 5_000))[number % 2]
        found.append(Activity(kernel, 7, at_ns, lasts_ns, at_ns - 10))
        at_ns += lasts_ns + pause_ns
    return timeline_of("net", "V100", 80, found)


def measured(conv_ns: int, norm_ns: int) -> Profile:
    """Return the timings as a replay has them: one-dimensional grids and names without spaces."""
    kernels = (
        (KernelIdentity("void_conv<int,_3>", (80, 1, 1), (256, 1, 1)), conv_ns),
        (KernelIdentity("norm", (8, 1, 1), (128, 1, 1)), norm_ns),
    )
    return Profile("net", "soft", 1, tuple(KernelTiming(kernel, 3, histogram([ns] * 3)) for kernel, ns in kernels))


def test_equal_times_agree_for_any_block_arrangement() -> None:
    results = agreement(timeline(), measured(40_000, 5_000))
    assert (results.kernels, results.missing, results.launches) == (2, 0, 6)
    assert (results.median_error, results.worst_error) == (0.0, 0.0)
    assert results.source_gaps_ns[2] == profile_of(timeline()).idle_ns


def test_worst_error_is_reported_with_its_kernel() -> None:
    results = agreement(timeline(), measured(40_000, 6_000))
    assert results.worst == "norm"
    assert round(results.worst_error, 3) == 0.2
    assert report_of([results]).worst == "net"
    assert report_of([results]).met == {"median_error": False}
    assert report_of([agreement(timeline(), measured(40_100, 5_000))]).met


def test_untimed_kernels_are_counted() -> None:
    profile = measured(40_000, 5_000)
    results = agreement(timeline(), Profile("net", "soft", 1, profile.timings[:1]))
    assert (results.kernels, results.missing) == (1, 1)
    assert report_of([]).met == {"median_error": False}


def test_only_the_first_launches_are_replayed_and_long_pauses_are_cut() -> None:
    whole = timeline(LAUNCHES + 10, pause_ns=2 * PAUSE_NS)
    part = beginning_of(whole)
    assert len(part.activities) == LAUNCHES
    launches = [activity.launch_ns for activity in part.activities if activity.launch_ns is not None]
    assert {later - earlier for earlier, later in itertools.pairwise(launches)} == {PAUSE_NS}
    assert beginning_of(timeline()) == timeline()
