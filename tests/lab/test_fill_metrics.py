"""Tests of the metrics of bench `fill`, with counters computed by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import ConfigError, WorldError
from cotenant.harness.harness import NodePolicy
from cotenant.harness.run import Mode, Progress, SharingRun, measure_run
from cotenant.workload.kernel import KernelIdentity, WorkKind
from cotenant.workload.kernel_table import LIST_COLUMNS, TIMELINE_COLUMNS
from cotenant.workload.load import TRAINING, Launch, Workload, periodic
from cotenant_lab.bench.fill import pairs
from cotenant_lab.bench.fill.bench import bench_fill, first_of_each_family, pairs_to_sweep
from cotenant_lab.bench.fill.metrics import Range, pair_metrics, ranges_of, same_window_ratio, spread_of
from cotenant_lab.data.trt import read_layers

MS = 1_000_000


def kernel(name: str, device_ns: int) -> Launch:
    return Launch(KernelIdentity(name, (80, 1, 1), (1024, 1, 1)), device_ns, 5, 0, 64)


def load(*durations_ns: int) -> Workload:
    copy = Launch(KernelIdentity("Memcpy HtoD", (1, 1, 1), (1, 1, 1), 0, WorkKind.COPY), 999)
    return Workload("made", (copy, *(kernel("k", duration) for duration in durations_ns)), TRAINING)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(0, 100))
def test_progress_is_the_time_of_completed_kernels(durations: list[int], kernels: int) -> None:
    done_ns = sum(durations[index % len(durations)] for index in range(kernels))
    assert Progress(load(*durations)).done_ns(kernels) == done_ns


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(0, 1000))
def test_kernels_for_a_duration(durations: list[int], wanted_ns: int) -> None:
    progress = Progress(load(*durations))
    kernels = progress.kernels_by(wanted_ns)
    assert progress.done_ns(kernels) >= min(wanted_ns, sum(durations))
    assert kernels == 0 or progress.done_ns(kernels - 1) < wanted_ns


def counters(now_ns: int, busy_ns: int, **clients: tuple[int, int]) -> dict[str, Any]:
    rows = [
        {"pid": int(name[1:]), "counters": {"kernels": kernels, "delayed_ns": delayed_ns}}
        for name, (kernels, delayed_ns) in clients.items()
    ]
    return {"now_ns": now_ns, "counters": {"busy_ns": busy_ns, "sm_ns": 2 * busy_ns}, "clients": rows}


def test_run_is_the_difference_of_two_counter_readings() -> None:
    before, after = counters(100, 40, p1=(3, 10), p2=(5, 7)), counters(1100, 640, p1=(9, 60), p2=(8, 700))
    text = {"requests": 4, "latency_sum_ns": 800, "latency_ns": {"p50": 190, "p99": 300}}
    run = measure_run("slices", before, after, (1, text), (2, Progress(load(10, 20, 30))))
    assert run == SharingRun(
        mode="slices",
        wall_ns=1000,
        requests=4,
        latency_sum_ns=800,
        latency_p50_ns=190,
        latency_p99_ns=300,
        online_delayed_ns=50,
        offline_done_ns=60,  # kernels 5, 6 and 7 of 10, 20, 30, 10, 20, 30, ...
        busy_ns=600,
        sm_ns=1200,
    )
    with pytest.raises(WorldError, match="no counters of client 9"):
        measure_run("slices", before, after, (9, text), None)


def run(mode: Mode, wall_ms: int, latency_ms: int, delayed_ms: float = 0, done_ms: float = 0) -> SharingRun:
    return SharingRun(
        mode=mode,
        latency_p50_ns=latency_ms * MS // 10 + (mode == "through") * MS,
        wall_ns=wall_ms * MS,
        latency_sum_ns=latency_ms * MS,
        online_delayed_ns=round(delayed_ms * MS),
        offline_done_ns=round(done_ms * MS),
    )


ROUND: dict[Mode, SharingRun] = {
    "alone": run("alone", 100, 100),
    "offline alone": run("offline alone", 300, 0, done_ms=300),
    "through": run("through", 101, 101),
    "slices": run("slices", 400, 400, 300, 200),
    "cotenant slices": run("cotenant slices", 110, 104, 2, 44),
}


def test_metrics_of_a_pair_computed_by_hand() -> None:
    found = pair_metrics("pair", "eager", [ROUND, ROUND])
    assert found.online_delay_ratio == {"slices": 3.0, "cotenant slices": 0.02}
    assert found.online_speedup_vs_sharing == {"slices": pytest.approx(400 / 104)}
    assert found.offline_rate_vs_sharing == {"slices": pytest.approx(0.4 / 0.5)}
    # 44 ms beside the online run and 290 ms alone, against 200 ms in the same 400 ms
    assert found.offline_ratio_vs_sharing == {"slices": pytest.approx(334 / 200)}
    assert found.offline_vs_alone == {"slices": pytest.approx(0.5), "cotenant slices": pytest.approx(0.4)}
    assert found.overhead_pct == pytest.approx(1.0)
    assert found.overhead_pct_p50 == pytest.approx(11.0)
    assert found.overhead_pct_unsampled is None
    assert found.online_alone_ms == 100
    assert found.spread["slices"].max_over_min == 0


def test_failed_runs_are_omitted() -> None:
    partial: dict[Mode, SharingRun] = {mode: one for mode, one in ROUND.items() if mode != "cotenant slices"}
    found = pair_metrics("pair", "eager", [partial], ["cotenant slices: gone"])
    assert found.online_speedup_vs_sharing == {}
    assert found.online_delay_ratio == {"slices": 3.0}
    assert "online_speedup_vs_sharing_slices" not in ranges_of([found])
    assert pair_metrics("pair", "eager", [{}]).overhead_pct is None


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 1))
def test_ratio_uses_the_same_window_for_both_runs(ours: int, theirs: int, mine: int, his: int, alone: float) -> None:
    first, second = run("mps", ours, ours, 0, mine), run("mps", theirs, theirs, 0, his)
    assert same_window_ratio(first, first, alone) == pytest.approx(1.0 if mine or ours == 0 else 0.0)
    if his and mine:
        product = same_window_ratio(first, second, alone) * same_window_ratio(second, first, alone)
        assert product == pytest.approx(1.0)


def test_ranges_and_spreads() -> None:
    slow = msgspec.structs.replace(ROUND["cotenant slices"], online_delayed_ns=6 * MS)
    found = [pair_metrics("a", "x", [ROUND]), pair_metrics("b", "x", [{**ROUND, "cotenant slices": slow}])]
    assert ranges_of(found)["online_delay_ratio_slices"] == Range(min=0.02, median=0.04, max=0.06)
    assert spread_of([100, 150, 125]).max_over_min == pytest.approx(0.5)
    assert spread_of([7.0, 7.0]).variation == 0


def measurements(root: Path) -> Path:
    """Return a directory laid out like the public measurements, with one small file of each kind."""
    for folder in ("kernel_timelines", "orion/model_kernels", "trt_engine_explorer"):
        (root / folder).mkdir(parents=True)
    rows = [
        '0,kernel,7,0,5,0,0,1,160x1x1,128x1x1,32,0,1,1,1,"gemm"',
        '1,memcpy,7,90,4,0,80,1,,,,,,,,"Memcpy DtoD (Device -> Device)"',
        '2,kernel,7,5000,5,0,4880,1,1x1x1,32x1x1,32,0,1,1,1,"relu"',
    ]
    table = "\n".join([TIMELINE_COLUMNS, *rows]).encode()
    timeline = root / "kernel_timelines/h100_bert_small_inference_eager.csv.gz"
    timeline.write_bytes(gzip.compress(table))
    rows = [LIST_COLUMNS, "conv<1, 2>,1,0,200,1600000", "relu,0,0,40,5000"]
    (root / "orion/model_kernels/resnet50_32_fb1.csv").write_text("\n".join(rows))
    layers = [{"count": 1}, {"name": "conv", "averageMs": 0.5}, {"name": "none", "averageMs": 0}]
    engine = root / "trt_engine_explorer/examples_pytorch_resnet_A100_fp16_resnet.onnx.engine.profile.json"
    engine.write_text(json.dumps(layers))
    return root


def test_pairs_are_read_and_missing_files_are_named(tmp_path: Path) -> None:
    found, missing = pairs.read_pairs(measurements(tmp_path))
    assert [pair.name for pair in found] == [
        "bert-small + train resnet50 b32",
        "trt resnet18 fp16 + train resnet50 b32",
    ]
    assert len(found) + len(missing) == len(pairs.PLANS) >= 12
    assert all("does not exist" in one.why for one in missing)
    eager, graph = found[0].online, found[1].online
    # 80 us apart, then a pause of 4.8 ms that is cut to 2 ms; the copy within the device became a kernel
    assert [launch.interval_ns for launch in eager.launches] == [80_000, 2 * MS, 0]
    assert [launch.kernel.work for launch in eager.launches] == [WorkKind.KERNEL] * 3
    assert eager.launches[1].sms(80) == 80
    assert eager.requests == round(pairs.RUN_NS / eager.host_ns)
    assert graph.graph
    assert [launch.device_ns for launch in graph.launches] == [500_000]
    training = found[0].offline
    assert training.arrival == TRAINING
    assert [launch.blocks_per_sm for launch in training.launches] == [1, 1]
    assert [launch.sms(80) for launch in training.launches] == [80, 40]


def test_names_of_pairs_and_loads_are_unique() -> None:
    assert len({pairs.plan_name(plan) for plan in pairs.PLANS}) == len(pairs.PLANS)
    recipes = {recipe for plan in pairs.PLANS for recipe in (plan.online, plan.offline)}
    # the same kernels under other arrivals are one task, and only they share a name
    assert len({recipe.name for recipe in recipes}) == len(
        {(recipe.path, recipe.host_ns, recipe.scale) for recipe in recipes}
    )
    families = {plan.family for plan in pairs.PLANS}
    assert {plan.family for plan in first_of_each_family(pairs.PLANS)} == families == set(pairs.FAMILIES)


def test_bound_is_swept_for_three_families(tmp_path: Path) -> None:
    found, _ = pairs.read_pairs(measurements(tmp_path))
    assert [pair.family for pair in pairs_to_sweep(found)] == ["eager"]


def test_periods_set_the_number_of_requests(tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(pairs.PLANS[0].online, arrival=periodic(30 * MS))
    assert pairs.read_load(measurements(tmp_path), recipe).requests == 10


def test_missing_measurements_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="docs/evaluation/data"):
        bench_fill(tmp_path, 1, NodePolicy(), lambda _: None)


@pytest.mark.parametrize("content", [b"[", b"[]", b'[{"name": "a", "averageMs": "x"}]', b'[{"averageMs": 0}]', b"\xff"])
def test_damaged_engine_profiles_are_named(content: bytes) -> None:
    with pytest.raises(ConfigError, match="fetch it again"):
        read_layers(content, "there")


def test_empty_policy_keeps_node_defaults() -> None:
    assert NodePolicy().flags() == []
    assert NodePolicy(bound="1ms", gate="strict").flags() == ["--gate", "strict", "--bound", "1ms"]
