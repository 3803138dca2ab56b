"""The DRA driver as a kubelet sees it: registration, preparation of claims, repetition and restarts."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.cluster.kubernetes.plugin import protocol
from cotenant.gate.grant import Kind
from cotenant.node.daemon.tokens import Tokens
from cotenant.node.model.protection import ProtectLimits
from tests.support.kubelets import call
from tests.support.plugin_api import CLAIM_UID, POD_UID
from tests.support.plugins import CLAIM, GPUS, PluginHarness

pytestmark = pytest.mark.live


@pytest.fixture
def harness() -> Iterator[PluginHarness]:
    with PluginHarness() as made:
        made.start()
        yield made


def spec_of(harness: PluginHarness, uid: str = CLAIM_UID) -> Any:
    token = harness.plugin.grants.token(uid)
    return harness.node.tokens.read_of_pod(token)


def test_kubelet_registers_the_driver_with_its_endpoint(harness: PluginHarness) -> None:
    info = harness.kubelet.register_driver()
    assert (info.type, info.name) == ("DRAPlugin", "gpu.cotenant.dev")
    assert info.endpoint == str(harness.kubelet.endpoint)
    assert list(info.supported_versions) == ["v1.DRAPlugin"]
    harness.kubelet.register_driver(error="another driver has this name")
    assert any("refused" in line and "another driver has this name" in line for line in harness.lines)


def test_prepared_claim_has_a_device_and_its_pod_a_token(harness: PluginHarness) -> None:
    harness.api.add_claim(devices=["gpu-1"], parameters={"kind": "online", "slo": "20ms", "priority": 1})
    [device] = harness.kubelet.prepare(CLAIM)[CLAIM_UID].devices
    assert (device.pool_name, device.device_name, list(device.request_names)) == ("node-a", "gpu-1", ["gpu"])
    assert device.share_id == "share-1"
    nvidia = f"nvidia.com/gpu={GPUS[1].called[0]}"
    assert list(device.cdi_device_ids) == [f"cotenant.dev/gpu=claim-{CLAIM_UID}", nvidia]
    spec = spec_of(harness)
    assert (spec.kind, spec.slo_ns, spec.priority) == (Kind.ONLINE, 20_000_000, 1)
    assert (spec.memory_bytes, spec.gpu, spec.pod) == (4 << 30, GPUS[1].called[0], f"{POD_UID}/{CLAIM_UID}")


def test_cdi_spec_mounts_directories_and_checks_the_image(harness: PluginHarness) -> None:
    harness.api.add_claim()
    harness.kubelet.prepare(CLAIM)
    [path] = harness.cdi()
    spec = json.loads(path.read_text())
    assert (path.name, spec["kind"]) == (f"cotenant.dev-claim-{CLAIM_UID}.json", "cotenant.dev/gpu")
    edits = spec["devices"][0]["containerEdits"]
    variables = dict(entry.split("=", 1) for entry in edits["env"])
    assert variables["COTENANT_REQUIRED"] == "1"
    assert int(variables["COTENANT_HOLD_ERRORS_MS"]) * 10**6 > ProtectLimits().pod_notice_ns
    mounts = {mount["containerPath"]: mount for mount in edits["mounts"]}
    hosts = {path: mount["hostPath"] for path, mount in mounts.items()}
    socket, grant = (Path(variables[name]) for name in ("COTENANT_SOCKET", "COTENANT_GRANT"))
    assert hosts[str(socket.parent)] == str(harness.node.directories.tenant_directory)
    assert (Path(hosts[str(grant.parent)]) / grant.name).read_text().startswith("token = pod.")
    assert all("ro" in mount["options"] for mount in mounts.values())
    preload = Path(hosts["/etc/ld.so.preload"]).read_text().strip()
    assert Path(preload).exists()
    assert any(preload.startswith(path + "/") for path in mounts)
    [hook] = edits["hooks"]
    assert hook["hookName"] == "createRuntime"
    assert os.access(hook["path"], os.X_OK)
    assert hook["args"][1].startswith("GLIBC_2.")


def test_other_users_than_root_can_read_the_grant(harness: PluginHarness) -> None:
    harness.api.add_claim()
    harness.kubelet.prepare(CLAIM)
    directory = harness.plugin.grants.path(CLAIM_UID)
    assert directory.stat().st_mode & 0o777 == 0o755
    assert (directory / "grant").stat().st_mode & 0o777 == 0o644
    assert directory.parent.stat().st_mode & 0o777 == 0o700


def test_claim_with_several_gpus_sees_all_of_them(harness: PluginHarness) -> None:
    harness.api.add_claim(devices=["gpu-1", "gpu-0"])
    devices = harness.kubelet.prepare(CLAIM)[CLAIM_UID].devices
    assert [device.device_name for device in devices] == ["gpu-1", "gpu-0"]
    uuids = [GPUS[1].called[0], GPUS[0].called[0]]
    assert f"CUDA_VISIBLE_DEVICES={','.join(uuids)}" in harness.cdi()[0].read_text()
    assert harness.plugin.grants.gpus(CLAIM_UID) == uuids
    assert spec_of(harness).gpu == ",".join(uuids)


def test_repeated_preparation_changes_nothing(harness: PluginHarness) -> None:
    harness.api.add_claim()
    first = harness.kubelet.prepare(CLAIM)
    grant = harness.plugin.grants.path(CLAIM_UID) / "grant"
    files = [(path.stat().st_ino, path.read_bytes()) for path in (*harness.cdi(), grant)]
    assert harness.kubelet.prepare(CLAIM) == first
    assert [(path.stat().st_ino, path.read_bytes()) for path in (*harness.cdi(), grant)] == files


def test_restart_of_the_plugin_changes_nothing_for_prepared_claims(harness: PluginHarness) -> None:
    harness.api.add_claim()
    first = harness.kubelet.prepare(CLAIM)
    grant = harness.plugin.grants.path(CLAIM_UID) / "grant"
    files = [(path.stat().st_ino, path.read_bytes()) for path in (*harness.cdi(), grant)]
    harness.restart()
    assert [(path.stat().st_ino, path.read_bytes()) for path in (*harness.cdi(), grant)] == files
    harness.kubelet.register_driver()
    assert harness.kubelet.prepare(CLAIM) == first
    assert harness.kubelet.unprepare(CLAIM)[CLAIM_UID].error == ""
    assert harness.cdi() == []


def test_released_claim_leaves_nothing_and_its_token_is_revoked(harness: PluginHarness) -> None:
    harness.api.add_claim()
    harness.kubelet.prepare(CLAIM)
    token = harness.plugin.grants.token(CLAIM_UID)
    assert not harness.node.tokens.is_revoked(token)
    for _ in range(2):
        assert harness.kubelet.unprepare(CLAIM)[CLAIM_UID].error == ""
    assert harness.cdi() == []
    assert not harness.plugin.grants.path(CLAIM_UID).exists()
    assert harness.node.tokens.is_revoked(token)
    assert harness.kubelet.prepare(CLAIM)[CLAIM_UID].error == ""
    assert not harness.node.tokens.is_revoked(token), "the same pod may use the claim again"


def test_claim_that_another_pod_uses_later_gets_another_token(harness: PluginHarness) -> None:
    harness.api.add_claim()
    harness.kubelet.prepare(CLAIM)
    token = harness.plugin.grants.token(CLAIM_UID)
    harness.api.add_claim(pods=[("job-2", "99999999-2222-3333-4444-555555555555")])
    assert harness.kubelet.prepare(CLAIM)[CLAIM_UID].error == ""
    assert harness.node.tokens.is_revoked(token)
    assert spec_of(harness).pod_uid == "99999999-2222-3333-4444-555555555555"


def test_error_of_one_claim_does_not_affect_another(harness: PluginHarness) -> None:
    harness.api.add_claim()
    missing = ("team", "bbbbbbbb-bbbb-cccc-dddd-eeeeeeeeeeee", "no-such-claim")
    answers = harness.kubelet.prepare(missing, CLAIM)
    assert "not found" in answers[missing[1]].error
    assert not answers[missing[1]].devices
    assert len(answers[CLAIM_UID].devices) == 1


@pytest.mark.parametrize("uid", ["", "../../../etc/cron.d/x", "a/b", "x" * 64, "-x", "a b", "a\nb"])
@pytest.mark.parametrize("method", ["prepare", "unprepare"])
def test_uid_that_could_be_a_path_is_refused(harness: PluginHarness, uid: str, method: str) -> None:
    harness.api.add_claim()
    answer = getattr(harness.kubelet, method)(("team", uid, "job-1-gpu-0"))
    assert "is not the uid of a claim" in answer[uid].error
    assert harness.cdi() == []


@pytest.mark.parametrize("namespace, name", [("", "x"), ("team", "")])
def test_claim_without_a_name_is_refused(harness: PluginHarness, namespace: str, name: str) -> None:
    answer = harness.kubelet.prepare((namespace, CLAIM_UID, name))[CLAIM_UID]
    assert "a claim has a namespace and a name" in answer.error


def test_wrong_parameters_are_reported_to_the_pod(harness: PluginHarness) -> None:
    harness.api.add_claim(parameters={"kind": "online", "slo": "50"})
    error = harness.kubelet.prepare(CLAIM)[CLAIM_UID].error
    assert error.startswith("cotenant: claim team/job-1-gpu-0: slo = '50': ")
    assert harness.cdi() == []
    assert not harness.plugin.grants.path(CLAIM_UID).exists()


def test_device_that_the_node_has_not_is_refused(harness: PluginHarness) -> None:
    harness.api.add_claim(devices=["gpu-7"])
    error = harness.kubelet.prepare(CLAIM)[CLAIM_UID].error
    assert "gpu-7" in error
    assert "the node has gpu-0, gpu-1" in error


def test_malformed_request_is_an_error_of_the_call_only(harness: PluginHarness) -> None:
    with pytest.raises(grpc.RpcError):
        call(harness.kubelet.endpoint, protocol.DRA_SERVICE, "NodePrepareResources", b"\xff\xff\xff")
    harness.api.add_claim()
    assert harness.kubelet.prepare(CLAIM)[CLAIM_UID].error == ""


def test_empty_request_has_an_empty_answer(harness: PluginHarness) -> None:
    assert harness.kubelet.prepare() == {}
    assert harness.kubelet.unprepare() == {}


def test_api_server_that_does_not_answer_is_an_error_and_later_not(harness: PluginHarness) -> None:
    harness.api.add_claim()
    path = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/job-1-gpu-0"
    harness.api.refusals["GET", path] = 503
    assert "status 503" in harness.kubelet.prepare(CLAIM)[CLAIM_UID].error
    harness.api.refusals.clear()
    assert harness.kubelet.prepare(CLAIM)[CLAIM_UID].error == ""


def test_claim_is_released_although_the_node_is_down(harness: PluginHarness) -> None:
    harness.api.add_claim()
    harness.kubelet.prepare(CLAIM)
    harness.node.directories.operator_socket.unlink()
    assert "no node answers" in harness.kubelet.prepare(CLAIM)[CLAIM_UID].error
    assert harness.kubelet.unprepare(CLAIM)[CLAIM_UID].error == ""
    assert harness.cdi() == []
    assert any("was not revoked" in line for line in harness.lines)


def test_tokens_are_renewed_if_the_node_lost_its_key(harness: PluginHarness) -> None:
    harness.api.add_claim(devices=["gpu-0", "gpu-1"])
    harness.kubelet.prepare(CLAIM)
    before = harness.plugin.grants.token(CLAIM_UID)
    other = Tokens(b"x" * 32)
    harness.node.tokens._key = other._key
    harness.plugin.preparer.refresh_grants()
    token = harness.plugin.grants.token(CLAIM_UID)
    assert token != before
    assert other.read_of_pod(token) is not None
    assert len(harness.plugin.grants.gpus(CLAIM_UID)) == 2


def test_deleted_sockets_are_served_again(harness: PluginHarness) -> None:
    harness.kubelet.register_driver()
    for socket in (harness.kubelet.endpoint, *(harness.kubelet.directory / "plugins_registry").iterdir()):
        socket.unlink()
    harness.observe()
    harness.kubelet.register_driver()
    assert harness.kubelet.unprepare(CLAIM)[CLAIM_UID].error == ""


def test_files_of_a_version_are_never_changed(harness: PluginHarness) -> None:
    [version] = (harness.home / "hook").iterdir()
    before = {path: path.stat().st_ino for path in version.rglob("*")}
    harness.restart()
    assert {path: path.stat().st_ino for path in version.rglob("*")} == before
    assert list((harness.home / "hook").iterdir()) == [version]
