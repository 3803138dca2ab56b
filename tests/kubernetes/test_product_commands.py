"""Commands on the installed product: check, ps, top, jobs; and the example of a gang."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant_lab.kubernetes.installation import EXAMPLES
from tests.support.product import BUSY, Product, train

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

OFFLINE = {"kind": "offline", "memory": "1GiB"}


def test_the_check_is_good_from_outside_and_on_the_node(product: Product) -> None:
    done = product.run("kubernetes", "check")
    assert done.returncode == 0, done.stdout
    inside = product.installation.in_node("cotenant", "kubernetes", "check", "--json", container="plugin")
    assert '"bad"' not in inside


def test_pods_gpus_and_jobs_of_the_cluster_are_shown(product: Product) -> None:
    product.pod("service", BUSY, {"kind": "online", "slo": "50ms", "memory": "2GiB", "share": "30%"})
    product.wait_running("service")
    product.job("training", train(100_000), OFFLINE, job={"completions": 3, "parallelism": 3})
    product.wait("two of three run", lambda: phases(product) == ["running", "running", "waiting"])
    pods = product.cotenant("ps", "-A")["pods"]
    [service] = [pod for pod in pods if pod["name"] == "service"]
    assert (service["kind"], service["phase"], service["node"]) == ("online", "running", "node-0")
    [waiting] = [pod for pod in pods if pod["phase"] == "waiting"]
    product.wait("the reason is shown", lambda: any(pod["reason"] for pod in waiting_pods(product)))
    assert waiting["job"] == "training"
    gpus = product.cotenant("top", "-A", "--once")["gpus"]
    assert [(gpu["node"], gpu["index"], gpu["type"]) for gpu in gpus] == [("node-0", 0, "V100"), ("node-0", 1, "V100")]
    assert sum(len(gpu["offline"]) for gpu in gpus) == 2
    assert sum(len(gpu["online"]) for gpu in gpus) == 1
    [job] = product.cotenant("jobs", "-A")["jobs"]
    assert (job["name"], job["completions"], job["succeeded"], job["failed"]) == ("training", 3, 0, 0)
    for words in (("ps", "-A"), ("top", "-A", "--once"), ("jobs", "-A")):
        done = product.run(*words)
        assert done.returncode == 0, done.stderr
        assert "training" in done.stdout


def phases(product: Product) -> list[str]:
    pods = product.cotenant("ps", "-A")["pods"]
    return sorted(pod["phase"] for pod in pods if pod["job"] == "training")


def waiting_pods(product: Product) -> list[Any]:
    return [pod for pod in product.cotenant("ps", "-A")["pods"] if pod["phase"] == "waiting"]


def test_the_example_of_a_gang_runs_as_it_is(product: Product) -> None:
    product.cluster.apply(EXAMPLES / "gang-job.yaml")
    product.wait("the gang has finished", lambda: succeeded(product, "distributed-training") == 2)


def succeeded(product: Product, job: str) -> int:
    return sum(pod["status"].get("phase") == "Succeeded" for pod in product.pods_of(job))
