"""What-if questions: order of results, packing, memory and the page."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from cotenant.cli.render.html.whatif import whatif_page
from cotenant.cli.render.whatif import answer_line
from cotenant.errors import ConfigError
from cotenant.profile.estimate.devices import GPUS
from cotenant.runner.machine import MachineState
from cotenant.simulate.whatif import WhatIfReport, answer, run_seconds
from cotenant.simulate.whatif_placement import Group, OutOfReachError, place
from cotenant.simulate.whatif_tenants import WhatIfTenant, guest_of, share_need, tenant_of_launches
from cotenant.units.estimate import around
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import Launch

V100 = GPUS["v100"]


def tenant(name: str, kernels: int, kernel_us: int, rate: float = 0.0, slo_ms: int = 0) -> WhatIfTenant:
    launch = Launch(KernelIdentity(name, (160, 1, 1), (1024, 1, 1)), kernel_us * 1000, 5000, registers=64)
    made = tenant_of_launches(
        name, name, (launch,) * kernels, rate_per_s=rate, slo_ns=slo_ms * 1_000_000, online=bool(rate)
    )
    return msgspec.structs.replace(made, latency_ns=around(made.latency_ns.point, 0.3), memory_bytes=1 << 30)


def asked(*tenants: WhatIfTenant) -> WhatIfReport:
    return answer(tenants, V100, 1, 1, lambda *_: None, 2.0)


def test_the_answer_orders_modes_and_edges() -> None:
    report = asked(tenant("web", 20, 100, 60, 30), tenant("train", 50, 400))
    web, train = report.tenants
    modes = {mode.mode: mode for mode in report.modes}
    assert report.one_gpu_is_enough
    assert web.met
    assert web.p99_ms is not None
    assert web.p99_ms.low <= web.p99_ms.point <= web.p99_ms.high
    assert modes["alone"].p99_ms["web"] <= modes["cotenant"].p99_ms["web"] < modes["mps"].p99_ms["web"]
    assert modes["alone"].progress["train"] > 0.95
    assert train.progress is not None
    assert 0.3 < train.progress.point < 1
    assert report.gpus_needed is not None
    assert (report.gpus_needed.point, report.placement) == (1, [["web", "train"]])


def test_the_same_question_has_the_same_answer() -> None:
    tenants = tenant("web", 10, 80, 50, 20), tenant("train", 30, 300)
    assert msgspec.json.encode(asked(*tenants)) == msgspec.json.encode(asked(*tenants))


def test_two_full_services_need_two_gpus_and_all_tenants_are_placed() -> None:
    report = asked(tenant("a", 10, 500, 120, 20), tenant("b", 10, 500, 120, 20), tenant("train", 50, 400))
    assert not report.one_gpu_is_enough
    assert report.gpus_needed is not None
    assert report.gpus_needed.low <= report.gpus_needed.point <= report.gpus_needed.high
    assert report.gpus_needed.point >= 2
    assert {name.split("/")[0] for group in report.placement for name in group} == {"a", "b", "train"}
    assert "not enough" in answer_line(report)


def test_a_rate_beyond_one_gpu_is_spread_over_replicas() -> None:
    report = asked(tenant("busy", 10, 1000, 250, 60))
    assert report.gpus_needed is not None
    assert report.gpus_needed.point >= 3
    assert all(name.startswith("busy/") for group in report.placement for name in group)


def test_an_objective_below_one_request_is_out_of_reach() -> None:
    report = asked(tenant("slow", 10, 1000, 5, 2))
    assert report.gpus_needed is None
    assert not report.one_gpu_is_enough
    assert any("longer than its objective" in line for line in report.warnings)
    assert "leaves no reserve within its objective of 2ms" in answer_line(report)


def test_memory_decides_as_well() -> None:
    large = [
        msgspec.structs.replace(tenant(name, 5, 50, 10, 50), memory_bytes=12 << 30) for name in ("first", "second")
    ]
    report = asked(*large)
    assert not report.memory_fits
    assert report.gpus_needed is not None
    assert report.gpus_needed.point == 2


def test_a_tenant_that_no_gpu_can_hold_is_named() -> None:
    large = msgspec.structs.replace(tenant("large", 5, 50, 10, 50), memory_bytes=40 << 30)
    report = asked(large, tenant("small", 5, 50, 10, 50))
    assert (report.one_gpu_is_enough, report.gpus_needed, report.placement) == (False, None, [])
    assert "large alone needs 40.0 GiB of memory" in answer_line(report)


def test_a_rate_beyond_any_number_of_gpus_is_no_matter_of_the_objective() -> None:
    report = answer([tenant("flood", 10, 1000, 1_000_000, 60)], V100, 1, 1, lambda *_: None, 0.01)
    assert report.gpus_needed is None
    assert "need more than 500 GPUs" in answer_line(report)


def test_an_overloaded_service_does_not_meet_a_wide_objective_until_the_run_ends() -> None:
    report = asked(tenant("late", 10, 1000, 110, 10_000))
    assert report.tenants[0].met is False
    assert any("its queue grows without end" in line for line in report.warnings)
    both = asked(tenant("a", 10, 1000, 60, 10_000), tenant("b", 10, 1000, 60, 10_000))
    modes = {mode.mode: mode for mode in both.modes}
    assert modes["alone"].met == {"a": True, "b": True}
    assert modes["cotenant"].met == {"a": False, "b": False}


def test_a_rare_service_has_enough_requests_for_its_percentile() -> None:
    report = asked(tenant("rare", 10, 100, 0.01, 20))
    assert report.tenants[0].met
    assert report.tenants[0].p99_ms is not None
    assert report.tenants[0].p99_ms.point >= 1
    assert any("in the simulation" in line for line in report.warnings)


def test_few_requests_are_said_to_be_few() -> None:
    report = asked(tenant("slow", 10, 20_000, 1, 900))
    assert any("slow: about 2 requests in 2 simulated seconds" in line for line in report.warnings)
    assert run_seconds([tenant("slow", 10, 20_000, 1, 900)]) >= 50


def test_names_of_tenants_may_contain_the_sign_of_copies() -> None:
    report = asked(tenant("team/a", 10, 500, 220, 20), tenant("team/b", 10, 500, 220, 20))
    assert {name.rpartition("/")[0] for group in report.placement for name in group} == {"team/a", "team/b"}


def test_a_service_that_misses_its_objective_by_itself_is_spread_further() -> None:
    service = tenant("web", 10, 500, 300, 20)
    counts: list[int] = []

    def only_below_a_rate(groups: Sequence[Group]) -> list[bool]:
        counts.append(len(groups))
        return [all(each.rate_per_s <= 40 for each in group) for group in groups]

    placement = place([service], V100, only_below_a_rate)
    assert placement.point == 8
    assert len(placement.groups) == 8
    assert counts, "equal GPUs are simulated once"
    assert max(counts) == 1
    with pytest.raises(OutOfReachError, match="one request of web"):
        place([service], V100, lambda groups: [False] * len(groups))


def test_tenants_that_disturb_each_other_in_the_simulation_are_separated() -> None:
    tenants = [tenant(name, 5, 50, 5, 50) for name in ("a", "b", "c")]
    placement = place(tenants, V100, lambda groups: [len(group) < 3 for group in groups])
    assert sorted(len(group) for group in placement.groups) == [1, 2]


def test_tenants_without_objectives_have_none_to_meet() -> None:
    assert "none of them has an objective" in answer_line(asked(tenant("a", 20, 400), tenant("b", 20, 400)))


def test_more_load_needs_a_larger_share() -> None:
    needs = [share_need(tenant("web", 20, 100, rate, 20)).share.point for rate in (20.0, 150.0, 300.0)]
    assert needs == sorted(needs)
    assert needs[0] < needs[-1]


def test_slower_kernels_take_longer_in_a_run() -> None:
    web = tenant("web", 5, 100, 10, 20)
    fast, slow = (guest_of(web, 10**9, 1, scale).load.device_ns for scale in (0.5, 2.0))
    assert slow == 4 * fast
    assert 0 < run_seconds([web]) <= 60
    assert run_seconds([tenant("flood", 1000, 10, 1e6, 20)]) < 0.01, "the number of launches is bounded"


def test_no_tenant_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--online"):
        asked(*())


def test_the_page_has_a_curve_for_every_mode_and_escapes_names() -> None:
    report = asked(tenant("<web>", 20, 100, 60, 30), tenant("train", 50, 400))
    page = whatif_page(report, MachineState(0, "Test", 2, 0.1))
    assert page.count("<polyline class='curve") == len(report.modes)
    assert "p99, objective 30 ms" in page
    assert all(f"<td>{mode.mode}</td>" in page for mode in report.modes)
    for mode in report.modes:
        curve = mode.curves["<web>"]
        assert curve == sorted(curve), "a distribution begins with the shortest latency"
    assert "<web>" not in page
    assert "&lt;web&gt;" in page
    assert "http" not in page


def test_unsupported_operators_reach_the_report() -> None:
    web = msgspec.structs.replace(tenant("web", 5, 100, 10, 20), remarks=("2 x Vendor is not supported",))
    assert any(line == "web: 2 x Vendor is not supported" for line in asked(web).warnings)
