"""Limits of pods on the installed product: memory, share and priority, as the counters of the device show them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from cotenant_lab.kubernetes.images import PAUSE_IMAGE
from cotenant_lab.kubernetes.installation import CLAIMS, EXAMPLES
from cotenant_lab.kubernetes.product_images import TRAINING_IMAGE
from cotenant_lab.kubernetes.request_load import RequestLoad
from tests.support.product import BUSY, PODS, RESTRICTED, Product

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

GIB = 1 << 30
REQUESTS = 300
SLO_NS = 50 * 10**6
"""The objective in online-deployment.yaml."""
ALLOCATE = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
print("init", cuda.cuInit(0))
print("context", cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
print("within", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(768 << 20)))
print("beyond", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(512 << 20)), flush=True)
time.sleep(600)
"""


def busy_ns(counters: dict[str, Any]) -> dict[int, int]:
    """Return the time that each client's kernels took on the device, by process."""
    return {client["pid"]: client["counters"]["busy_ns"] for client in counters["clients"]}


def shares(product: Product, gpu: str, span_ns: int) -> list[float]:
    """Return the part of the device time that each client used over this much device time, smallest first."""
    begin = product.counters(gpu)
    end = begin
    while end["now_ns"] < begin["now_ns"] + span_ns:
        end = product.counters(gpu)
    before, after = busy_ns(begin), busy_ns(end)
    passed_ns = end["now_ns"] - begin["now_ns"]
    return sorted((after[pid] - before[pid]) / passed_ns for pid in before if pid in after)


def test_a_pod_cannot_allocate_more_than_its_claim(product: Product) -> None:
    command = ["python3", "-c", ALLOCATE]
    product.pod("limited", command, {"kind": "offline", "memory": "1GiB"}, container={"securityContext": RESTRICTED})
    product.wait("it has allocated", lambda: "beyond" in product.logs("limited"))
    assert product.logs("limited").splitlines() == ["init 0", "context 0", "within 0", "beyond 2"]
    [client] = product.counters(product.gpu_of("limited"))["clients"]
    assert 768 << 20 <= client["counters"]["memory_peak_bytes"] <= GIB
    product.wait_running("limited")  # the node reports its tenants from time to time
    tenant = product.installation.tenant_of("limited")
    assert tenant is not None
    assert (tenant["kind"], tenant["memoryBytes"]) == ("offline", GIB)


def test_a_claim_template_of_a_user_works_without_annotations(product: Product) -> None:
    capacity = {"memory": "1Gi", "share": "30", "offlinePlaces": "0"}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.cotenant.dev", "capacity": {"requests": capacity}}}
    opaque = {"driver": "gpu.cotenant.dev", "parameters": {"kind": "online", "slo": "50ms"}}
    devices = {"requests": [request], "config": [{"requests": ["gpu"], "opaque": opaque}]}
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "own"}}
    product.cluster.apply({**template, "spec": {"spec": {"devices": devices}}})
    claims = [{"name": "mine", "resourceClaimTemplateName": "own"}]
    container = {"resources": {"claims": [{"name": "mine"}]}, "securityContext": RESTRICTED}
    product.pod("own", ["python3", "-c", ALLOCATE], {}, container=container, resourceClaims=claims)
    product.wait_running("own")
    tenant = product.installation.tenant_of("own")
    assert tenant is not None
    assert (tenant["kind"], tenant["memoryBytes"]) == ("online", GIB)
    product.wait("it has allocated", lambda: "beyond 2" in product.logs("own"))
    product.cluster.kubectl("delete", "resourceclaimtemplates", "own")


def test_the_example_of_hami_gets_what_its_resource_names_say(product: Product) -> None:
    [pod] = yaml.safe_load_all((EXAMPLES / "hami-pod.yaml").read_text())
    container = pod["spec"]["containers"][0]
    container |= {"image": TRAINING_IMAGE, "imagePullPolicy": "Never", "command": BUSY}
    product.cluster.apply(pod)
    name = pod["metadata"]["name"]
    product.wait_running(name)
    tenant = product.installation.tenant_of(name)
    assert tenant is not None
    assert (tenant["kind"], tenant["memoryBytes"], len(tenant["gpus"])) == ("online", 3000 << 20, 1)
    [claim] = product.cluster.get(CLAIMS)["items"]
    [device] = claim["status"]["allocation"]["devices"]["results"]
    assert (device["consumedCapacity"]["memory"], device["consumedCapacity"]["share"]) == ("3000Mi", "30")


def test_the_share_of_an_offline_pod_is_a_cap_on_the_device(product: Product) -> None:
    product.pod("capped", BUSY, {"kind": "offline", "memory": "1GiB", "share": "25%"})
    product.wait_running("capped")
    gpu = product.gpu_of("capped")
    product.wait("it computes", lambda: len(busy_ns(product.counters(gpu))) == 1)
    [used] = shares(product, gpu, 4 * 10**9)
    assert 0.1 < used < 0.35


def test_the_pod_of_higher_priority_gets_the_device(product: Product) -> None:
    product.pod("urgent", BUSY, {"kind": "online", "memory": "1GiB", "share": "50%", "priority": "0"})
    product.wait_running("urgent")
    gpu = product.gpu_of("urgent")
    for name in ("patient-a", "patient-b"):  # one for each GPU
        product.pod(name, BUSY, {"kind": "offline", "memory": "1GiB"})
    product.wait_running("patient-a", "patient-b")
    product.wait("both compute", lambda: len(busy_ns(product.counters(gpu))) == 2)
    lower, higher = shares(product, gpu, 4 * 10**9)
    assert higher > 3 * lower


def test_the_objective_of_a_service_is_kept_next_to_offline_pods(product: Product) -> None:
    product.cluster.apply(EXAMPLES / "online-deployment.yaml")
    product.wait("the service is ready", lambda: service(product) is not None)
    pod = service(product)
    gpu = product.gpu_of(pod["metadata"]["name"])
    with RequestLoad(pod["status"]["podIP"]) as load:
        load.wait_for(REQUESTS)
        alone = load.take()
        [process] = busy_ns(product.counters(gpu))
        for name in ("next-a", "next-b"):  # one for each GPU
            product.pod(name, BUSY, {"kind": "offline", "memory": "2GiB"})
        product.wait_running("next-a", "next-b")
        [neighbour] = [name for name in ("next-a", "next-b") if product.gpu_of(name) == gpu]
        product.wait("the neighbour computes", lambda: len(busy_ns(product.counters(gpu))) == 2)
        before = product.counters(gpu)
        load.take()
        load.wait_for(REQUESTS)
        shared = load.take()
        after = product.counters(gpu)
    assert load.failed == 0
    assert product.tenant_state(neighbour) == "running"
    for pid, used_ns in busy_ns(after).items():
        assert used_ns > busy_ns(before)[pid]
    delay_ns = delayed_ns(after, process) - delayed_ns(before, process)
    assert delay_ns / REQUESTS < SLO_NS / 10, "the device itself served the service at once"
    late_alone, late_shared = (sum(one > SLO_NS for one in times) / len(times) for times in (alone, shared))
    assert late_shared <= late_alone + 0.1


def service(product: Product) -> Any:
    """Return the pod of the service when it is ready."""
    found = product.cluster.get(PODS, labelSelector="app=search-ranking")["items"]
    conditions = found[0]["status"].get("conditions", ()) if found else ()
    return found[0] if ("Ready", "True") in [(one["type"], one["status"]) for one in conditions] else None


def delayed_ns(counters: dict[str, Any], pid: int) -> int:
    """Return the time for which kernels of a client waited because of others."""
    return sum(client["counters"]["delayed_ns"] for client in counters["clients"] if client["pid"] == pid)


def test_an_image_without_glibc_is_refused_with_a_reason(product: Product) -> None:
    product.pod("static", [], {"kind": "offline", "memory": "1GiB"}, image=PAUSE_IMAGE)

    def messages() -> str:
        return " ".join(str(event.get("message")) for event in product.events("static"))

    product.wait("the image is refused", lambda: "this image has no glibc" in messages())
    assert product.installation.tenant_of("static") is None
