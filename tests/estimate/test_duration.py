"""Durations of kernels: more work takes longer, waves and tiles are whole, and faster boards are faster."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.profile.estimate.corrections import MeasuredLatency, learn_correction, read_correction, write_correction
from cotenant.profile.estimate.devices import GPUS, find_gpu, part_of, simulated_device
from cotenant.profile.estimate.duration import Correction, best_tile, kernel_time, peak_flops
from cotenant.profile.estimate.kernels import KernelWork, Precision, forward_kernels
from cotenant.profile.estimate.onnx_operators import ModelOperators
from cotenant.profile.estimate.operator import Family, Gemm, Operator, Window
from cotenant.profile.estimate.parameters import FITTED
from cotenant.profile.estimate.stream import StreamOptions, estimate_stream

V100 = GPUS["v100"]
SIDES = st.integers(min_value=1, max_value=4096)


def product(m: int, n: int, k: int, precision: Precision = Precision.FP32) -> KernelWork:
    operator = Operator(
        "p", "MatMul", Family.MATMUL,
        read_bytes=4 * m * k, weight_bytes=4 * k * n, written_bytes=4 * m * n, elements=m * n, gemm=Gemm(m, n, k),
    )  # fmt: skip
    return forward_kernels(operator, precision)[0]


def pointwise(elements: int) -> KernelWork:
    operator = Operator(
        "e", "Relu", Family.POINTWISE, read_bytes=4 * elements, written_bytes=4 * elements, elements=elements
    )
    return forward_kernels(operator, Precision.FP32)[0]


def test_a_wave_that_is_not_full_takes_as_long_as_a_full_one() -> None:
    full = best_tile(Gemm(128 * V100.sms, 128, 4096), V100, Precision.FP32, FITTED)
    just_over = best_tile(Gemm(128 * V100.sms + 1, 128, 4096), V100, Precision.FP32, FITTED)
    assert just_over.compute_ns > 1.1 * full.compute_ns


@given(SIDES, SIDES, SIDES)
def test_no_product_is_faster_than_the_peak_or_the_bandwidth(m: int, n: int, k: int) -> None:
    for gpu in (V100, GPUS["h100"], GPUS["t4"]):
        time = kernel_time(product(m, n, k), gpu)
        assert time.device_ns >= 2.0 * m * n * k / gpu.fp32 * 1e9
        assert time.device_ns >= 4.0 * (m * k + k * n + m * n) / gpu.bytes_per_s * 1e9
        assert time.blocks >= 1
        assert 1 <= time.threads <= 1024


@given(st.lists(st.integers(min_value=1, max_value=1 << 26), min_size=2, max_size=6))
def test_more_elements_never_take_less_time(sizes: list[int]) -> None:
    times = [kernel_time(pointwise(size), V100).device_ns for size in sorted(sizes)]
    one_block_ns = 300  # two blocks of few elements are faster than a full one
    assert all(before <= after + one_block_ns for before, after in itertools.pairwise(times))


def test_large_kernels_approach_the_roofline() -> None:
    large = kernel_time(product(8192, 8192, 8192), V100)
    assert 2 * 8192**3 / large.device_ns / 1e-9 > 0.85 * V100.fp32
    assert not large.memory_bound
    wide = kernel_time(pointwise(1 << 28), V100)
    assert 8 * (1 << 28) / wide.device_ns / 1e-9 > 0.75 * V100.bytes_per_s
    assert wide.memory_bound


def test_boards_are_ordered_by_their_units() -> None:
    work = product(4096, 4096, 4096)
    times = [kernel_time(work, GPUS[key]).device_ns for key in ("h100", "a100", "v100", "p100", "t4", "p4")]
    assert times == sorted(times)
    half = kernel_time(product(4096, 4096, 4096, Precision.FP16), V100).device_ns
    assert half < 0.3 * kernel_time(work, V100).device_ns
    assert kernel_time(product(4096, 4096, 4096, Precision.FP16), GPUS["p4"]).device_ns > 0


def test_a_board_with_little_power_stays_below_its_boost_clock() -> None:
    assert peak_flops(GPUS["l4"], Precision.FP32, FITTED) < 0.6 * GPUS["l4"].fp32
    assert peak_flops(GPUS["a100"], Precision.FP32, FITTED) > 0.9 * GPUS["a100"].fp32


@given(st.integers(min_value=1, max_value=80))
def test_part_of_a_board_is_never_faster(sms: int) -> None:
    for work in (product(2048, 2048, 512), pointwise(1 << 22)):
        assert kernel_time(work, part_of(V100, sms)).device_ns >= 0.999 * kernel_time(work, V100).device_ns


def test_winograd_and_depthwise_are_separate() -> None:
    def conv(kernel: int, stride: int, groups: int) -> float:
        operator = Operator(
            "c", "Conv", Family.DEPTHWISE if groups > 1 else Family.CONVOLUTION,
            read_bytes=1 << 24, written_bytes=1 << 24, elements=1 << 22,
            gemm=Gemm(1 << 14, 256 // groups, 256 // groups * kernel**2, groups),
            window=Window((kernel, kernel), stride, groups),
        )  # fmt: skip
        return kernel_time(forward_kernels(operator, Precision.FP32)[0], V100).device_ns

    assert conv(3, 1, 1) < conv(3, 2, 1)
    assert conv(3, 1, 256) < 0.1 * conv(3, 1, 1)


def test_unknown_boards_are_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match="v100"):
        find_gpu("b9000")
    assert find_gpu("NVIDIA A100 80GB PCIe").key == "a100-80-pcie"
    assert find_gpu("V100").name == "Tesla V100-SXM2-16GB"


@pytest.mark.parametrize("key", sorted(GPUS))
def test_every_board_has_a_simulated_device_of_its_size(key: str) -> None:
    config = simulated_device(GPUS[key])
    assert (config.sm_count, config.memory_bytes) == (GPUS[key].sms, GPUS[key].memory_bytes)
    assert config.occupancy(256) > 0


def streams(kind: str) -> list[MeasuredLatency]:
    """Return models whose true times are known multiples of the estimates."""
    cases = []
    for index in range(4):
        size = 1 << (21 + index)
        operators = tuple(
            Operator(
                f"{kind}{number}", "MatMul" if number % 2 else "Relu",
                Family.MATMUL if number % 2 else Family.POINTWISE,
                read_bytes=4 * size, written_bytes=4 * size, elements=size,
                gemm=Gemm(512 << index, 1024, 1024) if number % 2 else None,
            )
            for number in range(20)
        )  # fmt: skip
        model = ModelOperators(operators, 1, 0, 0, 0, 0)
        options = StreamOptions(graph=True)
        truth = Correction(arithmetic=1.6, memory=0.8)
        plain = estimate_stream(f"m{index}", model, V100, options)
        measured = estimate_stream(f"m{index}", model, V100, options, correction=truth)
        cases.append(MeasuredLatency(plain, measured.latency_ns.point))
    return cases


def test_correction_factors_are_learned_from_a_few_latencies() -> None:
    cases = streams("x")
    factors, rows = learn_correction(cases)
    before = [abs(math.log(row.before_ns / row.measured_ns)) for row in rows]
    after = [abs(math.log(row.after_ns / row.measured_ns)) for row in rows]
    assert max(after) < 0.5 * max(before)
    assert factors.arithmetic > 1.2
    assert factors.memory < factors.arithmetic - 0.2
    assert factors.measurements == 4


def test_corrections_are_stored_by_gpu(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "state" / "corrections.json"
    assert read_correction(path, "v100") is None
    write_correction(path, "v100", Correction(arithmetic=1.5, measurements=2))
    write_correction(path, "t4", Correction(memory=2.0, measurements=1))
    assert read_correction(path, "v100") == Correction(arithmetic=1.5, measurements=2)
    write_correction(path, "v100", None)
    assert read_correction(path, "v100") is None
    assert read_correction(path, "t4") is not None
    path.write_text("{")
    with pytest.raises(ConfigError, match="remove the file"):
        read_correction(path, "t4")
