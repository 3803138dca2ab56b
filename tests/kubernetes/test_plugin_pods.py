"""Pods of a node: evictions of tenants that must end, answers to waiting pods, and the report of the node."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.cluster.kubernetes.gpu_node import GpuNode
from cotenant.cluster.kubernetes.plugin import report
from cotenant.cluster.kubernetes.plugin.pods import NodePods
from cotenant.gate.activity import DeviceSnapshot, GateCounts
from cotenant.gate.grant import Kind
from cotenant.node import wire
from cotenant.node.client.commands import evict
from cotenant.node.client.connection import Connection
from cotenant.node.daemon.tokens import LOOKUP_TOKEN
from cotenant.node.model.protection import ExitPhase, Lifecycle, ProtectLimits
from cotenant.node.model.tenant import TenantSpec
from cotenant.units.instant import SECOND_NS
from tests.node.test_attach import Hook, attached, refused
from tests.support.node_in_process import BOUND_S, join, until
from tests.support.plugin_api import CLAIM_UID, NODE, POD_UID, FakeApi
from tests.support.plugins import CLAIM, GPUS, PluginHarness, node_status

pytestmark = pytest.mark.live
POD_PATH = "/api/v1/namespaces/team/pods/job-1"
PLACES = [{"name": "main", "resources": {"limits": {"cotenant.dev/gpu": "1"}}}]
NOTICE_NS = ProtectLimits().pod_notice_ns


@pytest.fixture
def harness() -> Iterator[PluginHarness]:
    with PluginHarness(do_pods_need_grant=True) as made:
        made.start()
        made.node.peer_fields = {"cgroup": f"/kubepods/pod{POD_UID}/{'c' * 64}", "is_foreign": True}
        yield made


@pytest.fixture
def tenant(harness: PluginHarness) -> Iterator[Hook]:
    """The process of a prepared claim, which has joined."""
    harness.api.add_pod(terminationGracePeriodSeconds=5)
    harness.api.add_claim()
    harness.kubelet.prepare(CLAIM)
    hook = Hook(harness.node)
    attached(hook.attach(grant=(harness.plugin.grants.path(CLAIM_UID) / "grant").read_text()))
    yield hook
    hook.close()


def lifecycle(harness: PluginHarness) -> Lifecycle:
    [view] = [view for view in harness.node.honest().tenants if view.tenant.spec.pod]
    return view.tenant.lifecycle


def begin_exit(harness: PluginHarness) -> None:
    evict(harness.node.directories, ["team.job-1-aaaaaaaa"], None)
    assert lifecycle(harness).awaits_notice


def test_pod_of_a_tenant_that_must_end_is_evicted(harness: PluginHarness, tenant: Hook) -> None:
    harness.plugin.attend()
    assert harness.api.evictions == [], "nothing is evicted without a cause"
    begin_exit(harness)
    harness.plugin.attend()
    [request] = harness.api.evictions
    assert (request["kind"], request["metadata"]) == ("Eviction", {"name": "job-1", "namespace": "team"})
    assert request["deleteOptions"] == {"gracePeriodSeconds": 5, "preconditions": {"uid": POD_UID}}
    state = lifecycle(harness)
    assert (state.phase, state.awaits_notice) == (ExitPhase.TERMINATING, False)
    harness.plugin.attend()
    assert len(harness.api.evictions) == 1
    assert harness.node.processes.signals == [], "the kubelet sends the signals"


def test_eviction_that_a_budget_forbids_is_repeated_and_then_replaced_by_the_condition(
    harness: PluginHarness, tenant: Hook
) -> None:
    begin_exit(harness)
    harness.api.refusals["POST", f"{POD_PATH}/eviction"] = 429
    harness.plugin.attend()
    assert lifecycle(harness).awaits_notice, "the budget may allow it soon"
    harness.node.clock.advance(NOTICE_NS - 2 * SECOND_NS)
    harness.plugin.attend()
    [condition] = harness.api.objects[POD_PATH]["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    assert "requested it" in condition["message"]
    assert harness.node.processes.signals, "the node signals the program after the condition is set"


def test_forbidden_eviction_is_replaced_by_the_condition_at_once(harness: PluginHarness, tenant: Hook) -> None:
    begin_exit(harness)
    harness.api.refusals["POST", f"{POD_PATH}/eviction"] = 403
    harness.plugin.attend()
    assert harness.api.objects[POD_PATH]["status"]["conditions"][0]["reason"] == "EvictionByCotenant"
    assert not lifecycle(harness).awaits_notice


def test_node_waits_while_the_api_server_fails(harness: PluginHarness, tenant: Hook) -> None:
    begin_exit(harness)
    harness.api.refusals["POST", f"{POD_PATH}/eviction"] = 503
    for _ in range(2):
        harness.plugin.attend()
    assert lifecycle(harness).awaits_notice
    harness.api.refusals.clear()
    harness.plugin.attend()
    assert lifecycle(harness).phase is ExitPhase.TERMINATING


def test_pod_that_is_being_deleted_is_not_evicted_again(harness: PluginHarness, tenant: Hook) -> None:
    meta = harness.api.objects[POD_PATH]["metadata"]
    meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    begin_exit(harness)
    harness.plugin.attend()
    assert harness.api.evictions == []
    state = lifecycle(harness)
    assert (state.phase, state.until_ns - state.since_ns) == (ExitPhase.TERMINATING, 35 * SECOND_NS)


def test_pod_that_is_gone_does_not_delay_the_node(harness: PluginHarness, tenant: Hook) -> None:
    harness.api.objects.pop(POD_PATH)
    begin_exit(harness)
    harness.plugin.attend()
    assert not lifecycle(harness).awaits_notice
    assert harness.api.evictions == []


# -- waiting pods ------------------------------------------------------------------------------------------------------


def wait_in_pod(harness: PluginHarness) -> Hook:
    hook = Hook(harness.node)
    hook.send(grant=f"token = {LOOKUP_TOKEN}\n")
    until(lambda: harness.node.honest().waiting_pods == [POD_UID])
    harness.plugin.attend()
    return hook


def test_waiting_pod_joins_with_its_annotations(harness: PluginHarness) -> None:
    annotations = {"cotenant.dev/kind": "online", "cotenant.dev/slo": "20ms", "cotenant.dev/memory": "1GiB"}
    harness.api.add_pod(annotations=annotations, containers=PLACES)
    hook = wait_in_pod(harness)
    attached(hook.answer()[0])
    [view] = harness.node.honest().tenants
    spec = view.tenant.spec
    assert (spec.kind, spec.slo_ns, spec.memory_bytes, spec.pod) == (Kind.ONLINE, 20_000_000, 1 << 30, POD_UID)
    hook.close()


@pytest.mark.parametrize(
    "pod, words",
    [
        (None, "the API server does not know pod"),
        ({}, "no container requests cotenant.dev/gpu"),
        ({"annotations": {"cotenant.dev/kind": "x"}, "containers": PLACES}, "pod team/job-1: kind = 'x'"),
    ],
)
def test_waiting_pod_is_refused_with_a_reason(harness: PluginHarness, pod: Any, words: str) -> None:
    if pod is not None:
        harness.api.add_pod(**pod)
    hook = wait_in_pod(harness)
    assert words in refused(hook.answer()[0]).detail
    hook.close()


def test_static_pod_is_found_by_its_hash(harness: PluginHarness) -> None:
    digest = "0123456789abcdef0123456789abcdef"
    harness.node.peer_fields["cgroup"] = f"/kubepods/pod{digest}/{'c' * 64}"
    harness.api.add_pod(annotations={"kubernetes.io/config.hash": digest}, containers=PLACES)
    hook = Hook(harness.node)
    hook.send(grant=f"token = {LOOKUP_TOKEN}\n")
    until(lambda: harness.node.honest().waiting_pods == [digest])
    harness.plugin.attend()
    attached(hook.answer()[0])
    hook.close()


def test_a_pod_that_claims_the_uid_of_another_does_not_stand_for_it() -> None:
    with FakeApi() as api:
        api.add_pod(containers=PLACES)
        hostile = {"kubernetes.io/config.hash": POD_UID, "cotenant.dev/kind": "online"}
        api.add_pod("hostile", "0" * 32, annotations=hostile, containers=PLACES)
        found = NodePods(api.client, NODE).find(POD_UID)
    assert found is not None
    assert found.metadata.name == "job-1"


# -- the report --------------------------------------------------------------------------------------------------------


def gpu_node(harness: PluginHarness) -> GpuNode:
    return msgspec.convert(harness.api.objects[f"/apis/cotenant.dev/v1alpha1/gpunodes/{NODE}"], GpuNode)


def test_report_names_gpus_online_work_and_tenants_of_pods(harness: PluginHarness, tenant: Hook) -> None:
    harness.node.peer_fields = {}
    with Connection(harness.node.path, BOUND_S) as parent:
        join(parent, TenantSpec(Kind.ONLINE, 2, "web", 50_000_000, 2 << 30, 300_000, gpu=GPUS[0].called[0]))
        harness.observe()
        status = gpu_node(harness).status
        first, second = status.gpus
        assert (first.uuid, first.type, first.memory_bytes) == (GPUS[0].called[0], "V100", 16 << 30)
        assert (first.free_bytes, first.offer_ppm, first.condition) == (14 << 30, 700_000, "healthy")
        assert (second.type, second.offer_ppm) == ("A100", 1_000_000)
        [online] = first.online
        assert (online.name, online.slo_ns) == ("web", 50_000_000)
        [one] = status.tenants
        assert (one.pod_uid, one.claim_uid, one.kind, one.state) == (POD_UID, CLAIM_UID, "offline", "running")
        assert (one.gpus, one.memory_bytes) == ([GPUS[0].called[0]], 4 << 30)
    stored = harness.api.objects[f"/apis/cotenant.dev/v1alpha1/gpunodes/{NODE}"]
    assert stored["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert stored["status"]["conditions"][0]["status"] == "True"


def test_report_contains_the_speed_of_offline_tenants(harness: PluginHarness, tenant: Hook) -> None:
    tenants = harness.plugin.node.tenants()
    [grant] = [view.tenant.grant for view in tenants.tenants]
    made = report.StatusMaker(lambda claim: ())

    def rate_ppm(launches: int, waited_ns: int, now: int) -> int:
        counts = GateCounts(generation=grant.generation, launches=launches, waited_ns=waited_ns)
        gate = DeviceSnapshot(grant.gpu, now, tenants.rules, {grant.slot: counts})
        activity = [wire.GpuActivity(gate, None, {})]
        return made.make(tenants, activity, epoch=1, now=now).tenants[0].rate_ppm

    assert rate_ppm(0, 0, 0) == 0
    assert rate_ppm(100, 3 * SECOND_NS, 10 * SECOND_NS) == 700_000
    assert rate_ppm(110, 3 * SECOND_NS, 11 * SECOND_NS) == 700_000, "until the next one is measured"
    assert made.make(tenants, [], epoch=1, now=12 * SECOND_NS).tenants[0].rate_ppm == 0


def writes(harness: PluginHarness) -> int:
    return sum(method == "PATCH" and "gpunodes" in path for method, path in harness.api.requests)


def test_unchanged_report_is_written_only_as_a_sign_of_life(harness: PluginHarness, tenant: Hook) -> None:
    harness.observe()
    before = writes(harness)
    for _ in range(10):
        harness.observe()
    assert writes(harness) == before
    harness.observe(20)
    assert writes(harness) == before + 1
    begin_exit(harness)
    harness.observe()
    assert gpu_node(harness).status.tenants[0].state == "draining"
    assert gpu_node(harness).status.tenants[0].reason.startswith("evicted: ")


def test_epoch_grows_with_each_daemon_and_not_with_the_plugin(harness: PluginHarness) -> None:
    harness.node.clock.advance(100 * SECOND_NS)

    def epoch(unix_s: int) -> int:
        harness.plugin._reporter._unix_ns = lambda: unix_s * SECOND_NS
        harness.observe()
        assert not [line for line in harness.lines if "recovered" in line], harness.lines
        return gpu_node(harness).status.epoch

    first = epoch(1000)
    harness.restart()
    assert epoch(1001) == first, "the wall clock was corrected"
    uptime_ns = harness.node.clock.now()
    harness.node.listener.service = lambda request: node_status(harness.node, uptime_ns=5)  # another daemon
    second = epoch(1002)
    assert second > first
    assert epoch(1003) == second
    harness.node.listener.service = lambda request: node_status(harness.node, uptime_ns=uptime_ns)
    harness.restart()
    assert epoch(900) == second, "it never falls"
    harness.restart()
    assert epoch(5000) > second


def test_node_whose_daemon_is_down_offers_nothing(harness: PluginHarness, tenant: Hook) -> None:
    harness.observe()
    harness.node.directories.operator_socket.unlink()
    harness.observe(30)
    status = gpu_node(harness).status
    assert [(gpu.offer_ppm, gpu.condition) for gpu in status.gpus] == [(0, "disabled")] * 2
    assert len(status.tenants) == 1, "its programs may still run"
    stored = harness.api.objects[f"/apis/cotenant.dev/v1alpha1/gpunodes/{NODE}"]["status"]["conditions"][0]
    assert (stored["status"], stored["reason"]) == ("False", "DaemonDown")


def test_missing_crd_is_reported_in_one_sentence(harness: PluginHarness) -> None:
    harness.api.missing_groups.add("/apis/cotenant.dev")
    for _ in range(2):
        harness.observe()
    assert sum("install the CRD" in line for line in harness.lines) == 1


# -- progress ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    directory = tmp_path / "7" / "root" / "dev" / "shm"
    directory.mkdir(parents=True)
    return directory


def test_progress_is_read_in_the_container(tmp_path: Path, shm: Path) -> None:
    assert report.read_progress(7, tmp_path) == 0
    (shm / "cotenant-progress").write_text("120/1000\n")
    assert report.read_progress(7, tmp_path) == 120_000
    assert report.read_progress(0, tmp_path) == 0
    (shm / "cotenant-progress").write_text("garbage" * 100)
    assert report.read_progress(7, tmp_path) == 0


def test_progress_never_leads_out_of_the_container(tmp_path: Path, shm: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("120/1000\n")
    file = shm / "cotenant-progress"
    file.symlink_to(secret)
    assert report.read_progress(7, tmp_path) == 0
    file.unlink()
    os.mkfifo(file)
    assert report.read_progress(7, tmp_path) == 0, "a pipe does not block the plugin"
    file.unlink()
    shm.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "cotenant-progress").write_text("120/1000\n")
    shm.symlink_to(elsewhere)
    assert report.read_progress(7, tmp_path) == 0


def test_activity_of_the_node_is_decoded(harness: PluginHarness) -> None:
    assert isinstance(harness.plugin.node.activity(), wire.Activity)
