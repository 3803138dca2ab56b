"""Kernel streams: modes, training, uncertainty, storage and comparison with measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.errors import ConfigError
from cotenant.profile.estimate.commands import (
    ModelRequest,
    import_model,
    learn_corrections,
    measured_launches,
    parse_batches,
    parse_dimensions,
    parse_precision,
    playable_launches,
    stream_directory,
)
from cotenant.profile.estimate.compare import family_difference, family_of
from cotenant.profile.estimate.devices import GPUS
from cotenant.profile.estimate.kernels import Phase
from cotenant.profile.estimate.onnx_operators import onnx_operators
from cotenant.profile.estimate.operator import Family
from cotenant.profile.estimate.stored import find_stream
from cotenant.profile.estimate.stream import EstimatedStream, StreamOptions, estimate_stream, launches_of_stream
from cotenant.profile.profile import KernelTiming, Profile
from cotenant.profile.store import ProfileKey, ProfileStore
from cotenant.units.histogram import Recorder
from cotenant.workload.kernel import KernelIdentity
from cotenant_lab.bench.goodput.models import make_models
from tests.support.onnx_models import write_model

V100 = GPUS["v100"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder, small=True)
    return folder


def stream_of(path: Path, batch: int = 1, **options: object) -> EstimatedStream:
    chosen = StreamOptions(**options)  # type: ignore[arg-type]
    return estimate_stream(path.stem, onnx_operators(path, batch, {}), V100, chosen)


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "transformer"])
def test_fusion_launches_fewer_kernels_and_moves_less(models: Path, name: str) -> None:
    path = models / f"{name}.onnx"
    eager, fused = stream_of(path, 8), stream_of(path, 8, mode="fused")
    assert len(fused.kernels) < 0.7 * len(eager.kernels)
    assert fused.moved_bytes < eager.moved_bytes
    assert fused.device_ns.point < eager.device_ns.point
    gemms = [[kernel.work.gemm for kernel in stream.kernels if kernel.work.gemm] for stream in (eager, fused)]
    assert gemms[0] == gemms[1]  # fusion keeps every product


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "transformer"])
def test_a_training_step_contains_the_forward_pass_and_two_products_for_each(models: Path, name: str) -> None:
    path = models / f"{name}.onnx"
    forward, step = stream_of(path, 4), stream_of(path, 4, train=True)
    by_phase = {phase: [kernel for kernel in step.kernels if kernel.work.phase is phase] for phase in Phase}
    assert len(by_phase[Phase.FORWARD]) == len(forward.kernels)
    products = sum(kernel.work.gemm is not None for kernel in forward.kernels)
    assert sum(kernel.work.gemm is not None for kernel in by_phase[Phase.BACKWARD]) == 2 * products
    assert by_phase[Phase.OPTIMIZER]
    assert 2 * forward.device_ns.point < step.device_ns.point < 6 * forward.device_ns.point


def test_latency_grows_with_the_batch_and_intervals_contain_the_point(models: Path) -> None:
    streams = [stream_of(models / "resnet.onnx", batch, graph=True) for batch in (1, 8, 64, 256)]
    points = [stream.latency_ns.point for stream in streams]
    assert points == sorted(points)
    for stream in streams:
        assert stream.latency_ns.low < stream.latency_ns.point < stream.latency_ns.high
        assert sum(row.share for row in stream.families) == pytest.approx(1)


def test_a_slow_host_bounds_the_latency(models: Path) -> None:
    fast, slow = (stream_of(models / "resnet.onnx", 1, host_ns=host) for host in (100.0, 1e6))
    assert slow.latency_ns.point >= 1e6 * (len(slow.kernels) - 20)
    assert fast.latency_ns.point == pytest.approx(fast.device_ns.point, rel=0.05)
    assert fast.busy > 0.9 > slow.busy


def test_unsupported_operators_are_named_with_their_share(tmp_path: Path) -> None:
    stream = stream_of(write_model(tmp_path / "vendor.onnx", unknown=True), 64)
    (row,) = stream.unsupported
    assert (row.type, row.count) == ("VendorThing", 1)
    own = sum(kernel.device_ns for kernel in stream.kernels if kernel.work.family is Family.UNSUPPORTED)
    assert row.share == pytest.approx(own / stream.device_ns.point)
    assert row.share > 0
    plain = stream_of(write_model(tmp_path / "plain.onnx"), 64)
    assert not plain.unsupported
    assert stream.device_ns.high / stream.device_ns.low > plain.device_ns.high / plain.device_ns.low


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles.sqlite", pytest.fail)


def request(path: Path, **more: object) -> ModelRequest:
    return ModelRequest(source=str(path), gpu=V100, **more)  # type: ignore[arg-type]


def test_an_import_is_a_profile_and_a_script_and_replaces_the_earlier_one(
    models: Path, tmp_path: Path, store: ProfileStore
) -> None:
    wanted = request(models / "resnet.onnx", batches=(1, 4))
    import_model(wanted, store, tmp_path, 1, lambda _: None)
    imported = import_model(wanted, store, tmp_path, 2, lambda _: None)
    assert [new.task for new in imported] == ["resnet:b1", "resnet:b4"]
    stored = store.get(ProfileKey("resnet:b4", "Tesla V100-SXM2-16GB (estimated)"))
    assert stored is not None
    stream = imported[1].stream
    assert stored.profile.runs == 1
    assert stored.profile.device_ns == pytest.approx(stream.device_ns.point, rel=0.01)
    script = find_stream(stream_directory(tmp_path), "resnet", "", 4, train=None)
    launches = script.launches()
    assert [launch.device_ns for launch in launches] == [launch.device_ns for launch in launches_of_stream(stream)]
    assert [launch.kernel.blocks for launch in launches] == [kernel.blocks for kernel in stream.kernels]
    assert find_stream(stream_directory(tmp_path), "resnet", "", None, train=None).batch == 1
    with pytest.raises(ConfigError, match="resnet"):
        find_stream(stream_directory(tmp_path), "bert", "", None, train=None)


def measured_profile(task: str) -> Profile:
    times = Recorder()
    for _ in range(10):
        times.record(40_000)
    kernels = (
        KernelIdentity("ampere_sgemm_128x64", (80, 1, 1), (256, 1, 1)),
        KernelIdentity("relu", (8, 1, 1), (128, 1, 1)),
    )
    timings = tuple(KernelTiming(kernel, 10, times.histogram()) for kernel in kernels)
    return Profile(task, V100.name, 1, timings, (), 1_000_000, 800_000)


def test_a_measurement_overrides_the_estimate(models: Path, tmp_path: Path, store: ProfileStore) -> None:
    import_model(request(models / "resnet.onnx"), store, tmp_path, 1, lambda _: None)
    stream = find_stream(stream_directory(tmp_path), "resnet", "", None, train=None)
    assert measured_launches(store, "resnet:b1", V100) is None
    assert playable_launches(stream, store)[1] is False
    store.add(measured_profile("resnet:b1"), 2)
    launches, measured = playable_launches(stream, store)
    assert measured
    assert [launch.device_ns for launch in launches] == [40_000, 40_000]


def test_profiles_are_compared_by_family(models: Path, tmp_path: Path, store: ProfileStore) -> None:
    import_model(request(models / "transformer.onnx"), store, tmp_path, 1, lambda _: None)
    stored = store.get(ProfileKey("transformer:b1", "Tesla V100-SXM2-16GB (estimated)"))
    assert stored is not None
    rows = {row.family: row for row in family_difference(stored.profile, measured_profile("transformer:b1"))}
    assert rows["matmul"].after_ns == 40_000
    assert rows["matmul"].before_ns > 0
    assert rows["matmul"].ratio == pytest.approx(40_000 / rows["matmul"].before_ns)
    assert rows["softmax"].after_ns == 0
    assert sum(row.before_ns for row in rows.values()) == pytest.approx(stored.profile.device_ns)


@pytest.mark.parametrize(
    "name, family",
    [
        ("volta_sgemm_128x64_nn", Family.MATMUL),
        ("cudnn::winograd_nonfused::winogradForwardData4x4", Family.CONVOLUTION),
        ("void at::native::vectorized_elementwise_kernel<4, ReLU>", Family.POINTWISE),
        ("void cunn_SoftMaxForward<4>", Family.SOFTMAX),
        ("void batch_norm_transform_input_kernel", Family.NORMALIZATION),
        ("mystery", Family.UNSUPPORTED),
    ],
)
def test_families_of_library_kernels(name: str, family: Family) -> None:
    assert family_of(KernelTiming(KernelIdentity(name, (1, 1, 1), (32, 1, 1)))) is family


def test_learned_corrections_apply_to_later_imports(models: Path, tmp_path: Path, store: ProfileStore) -> None:
    options = StreamOptions(graph=True)
    base = request(models / "resnet.onnx", batches=(64,), options=options)
    (before,) = import_model(base, store, tmp_path, 1, lambda _: None)
    slow_ms = 2 * before.stream.latency_ns.point / 1e6
    words = [f"{models / 'resnet.onnx'}:batch=64,latency={slow_ms:.3f}ms"]
    factors, _ = learn_corrections(words, base, tmp_path, lambda _: None)
    (after,) = import_model(base, store, tmp_path, 2, lambda _: None)
    assert factors.measurements == 1
    assert after.stream.latency_ns.point == pytest.approx(2 * before.stream.latency_ns.point, rel=0.35)
    assert after.stream.latency_ns.high / after.stream.latency_ns.low < (
        before.stream.latency_ns.high / before.stream.latency_ns.low
    )
    for word in ("resnet.onnx", "resnet.onnx:batch=1", "resnet.onnx:batch=1,latency=0s"):
        with pytest.raises(ConfigError):
            learn_corrections([word], base, tmp_path, lambda _: None)


def test_words_of_flags() -> None:
    assert parse_batches("1,8,8,32") == (1, 8, 32)
    assert parse_dimensions(["sequence=128"]) == {"sequence": 128}
    assert parse_precision("") is None
    for parse, bad in ((parse_batches, "0"), (parse_batches, "x"), (parse_precision, "fp12")):
        with pytest.raises(ConfigError):
            parse(bad)
    with pytest.raises(ConfigError, match="NAME=SIZE"):
        parse_dimensions(["sequence"])
