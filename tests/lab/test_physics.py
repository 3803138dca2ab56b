"""Tests that fits reproduce the device model and recover its parameters."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.softgpu.sim.device import preset
from cotenant_lab.physics import instance, share, tenants
from tests.support.measurements import CLIENTS, PROCESS, REQUESTS, SERVER, runs

V100 = preset("v100")
REQUEST = st.builds(
    share.Request,
    host_ns=st.floats(0, 1e8),
    wide_sm_ns=st.floats(1e6, 1e10),
    narrow_ns=st.floats(0, 1e7),
    lean=st.sampled_from(share.LEANS),
)


@given(REQUEST, st.integers(1, V100.sm_count))
@settings(max_examples=60)
def test_closed_form_equals_the_device_model(request_: share.Request, cap: int) -> None:
    assert share.law_ns(request_, cap) == share.latency_ns(request_, V100, cap)


@pytest.mark.parametrize("name", REQUESTS, ids=str)
def test_five_shares_of_a_known_request_predict_the_others(name: tuple[str, int]) -> None:
    truth = REQUESTS[name]
    shares = list(range(5, 101, 5))
    fitted_shares = share.fit_shares(shares, 5)
    caps = share.caps(fitted_shares, V100)
    found, cost = share.fit_request({cap: share.law_ns(truth, cap) for cap in caps}, truth.lean)
    assert cost < 1e-4
    for cap in share.caps(shares, V100):
        assert share.law_ns(found, cap) == pytest.approx(share.law_ns(truth, cap), rel=0.02)
    assert found.wide_sm_ns == pytest.approx(truth.wide_sm_ns, rel=0.05)
    if truth.host_ns > 1.2 * (truth.wide_sm_ns / V100.sm_count + truth.narrow_ns):  # otherwise no share shows it
        assert found.host_ns == pytest.approx(truth.host_ns, rel=0.05)


def test_lean_is_recovered_from_curves() -> None:
    leaning = [msgspec.structs.replace(request, lean=1.0) for request in REQUESTS.values()]
    curves = [{cap: float(share.law_ns(request, cap)) for cap in (4, 8, 16, 36, 80)} for request in leaning]
    assert share.choose_lean(curves) == 1.0


@given(st.sets(st.integers(1, 100), min_size=1), st.integers(2, 8))
def test_shares_to_fit_are_measured_ones_with_both_ends(shares: set[int], count: int) -> None:
    chosen = share.fit_shares(sorted(shares), count)
    assert len(chosen) == len(set(chosen)) == min(count, len(shares))
    assert set(chosen) <= shares
    assert {min(shares), max(shares)} <= set(chosen)


def test_default_shares_to_fit() -> None:
    assert share.fit_shares(range(5, 101, 5), 5) == [5, 10, 20, 45, 100]


@pytest.mark.parametrize("gpcs", [1, 2, 3, 4])
def test_slowdown_does_not_depend_on_the_instance_size(gpcs: int) -> None:
    small = msgspec.structs.replace(preset("a100-80"), sm_count=gpcs * instance.GPC_SMS)
    large = msgspec.structs.replace(preset("a100-80"), sm_count=7 * instance.GPC_SMS)
    for count in (1, 3, 5):
        assert instance.latency_ns(PROCESS, count, small) == instance.latency_ns(PROCESS, count, large)


def test_two_process_counts_predict_the_others() -> None:
    config = msgspec.structs.replace(preset("a100-80"), sm_count=7 * instance.GPC_SMS)
    found = [candidate for candidate in instance.candidates() if candidate.narrow_width in {1, 5}]
    table = instance.slowdown_table(found, 5, config)
    truth = table[found.index(PROCESS)]
    point, stranger = ("net", 1, 8), ("other", 1, 8)
    known = {(point, count): truth[count - 1] for count in (2, 4)}
    chosen, _ = instance.fit_processes([point, stranger], known, {point: PROCESS.wide}, found, table)
    assert list(table[chosen]) == pytest.approx(list(truth), rel=0.02)


def test_wide_part_is_fitted_to_latencies_alone() -> None:
    request = share.Request(host_ns=1e6, wide_sm_ns=2.8e9, narrow_ns=1e7, lean=0.5)
    alone = {("net", gpcs, 8): float(share.law_ns(request, gpcs * instance.GPC_SMS)) for gpcs in (1, 2, 4, 7)}
    parts = instance.wide_parts({**alone, ("lonely", 1, 8): 1e7})
    assert ("lonely", 1, 8) not in parts
    for point, latency in alone.items():
        assert parts[point] == pytest.approx(2.8e9 / (point[1] * instance.GPC_SMS) / latency, rel=0.05)


def test_single_client_has_its_latency_alone() -> None:
    (first, *_), config = runs(), tenants.rtx3080()
    for client in first.clients:
        only = tenants.ClientsRun(first.name, (client,), first.alone_ns)
        latency = tenants.run_together(only, SERVER, config, 200_000_000)[client.name]
        assert latency == pytest.approx(first.alone_ns[client.name] + config.launch_ns, rel=0.001)


def test_kernel_counts_are_fitted_to_concurrent_clients() -> None:
    config = tenants.rtx3080()
    together = tenants.predict(runs(), SERVER, config)
    found = tenants.fit_server(runs(), together, config)
    again = tenants.predict(runs(), found, config)
    for cell, latency in together.items():
        assert again[cell] == pytest.approx(latency, rel=0.15)
    assert found.kernels["resnet152"] > 2 * found.kernels["vgg19"]


def test_fit_without_data_keeps_initial_values() -> None:
    guess = tenants.fit_server(runs(), {}, tenants.rtx3080())
    models = {client.model for clients in CLIENTS.values() for client in clients}
    assert guess.kernels == {model: tenants.LAYER_KERNELS[model] for model in models}
