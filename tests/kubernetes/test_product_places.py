"""Several offline Jobs share each GPU of the installed product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cotenant_lab.kubernetes.installation import Installation
from tests.support.kubernetes_tenants import Records, Tenants

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

PLACES = 4
VALUES = {"node": {"offlinePlaces": PLACES}}


@pytest.fixture
def tenants(installation: Installation) -> Iterator[Tenants]:
    made = Tenants(installation.cluster, Records(installation.cluster.directory / "record"))
    yield made
    made.remove()


def test_as_many_jobs_share_a_gpu_as_it_has_places(installation: Installation, tenants: Tenants) -> None:
    cluster, total = installation.cluster, 2 * PLACES + 1
    names = [f"sharing-{number}" for number in range(total)]
    for name in names:
        tenants.start_job(name, waits=True)

    def started() -> list[str]:
        return [name for name in names if tenants.records.hook(name)]

    cluster.wait("every place is taken", lambda: len(started()) == total - 1, 300)
    [last] = set(names) - set(started())
    cluster.wait("the last Job says why it waits", lambda: tenants.placed(last).get("status") == "False")
    assert tenants.placed(last)["message"] == "None of 2 GPUs is open: 2 held"
    for gpu in (0, 1):
        clients = installation.counters(gpu)["clients"]
        assert len(clients) == PLACES
        assert all(client["counters"]["kernels"] for client in clients)
    for name in names:
        tenants.records.end(name)
    tenants.wait_finished(*names)
    assert {tuple(tenants.records.events(name)) for name in names} == {("start", "finish")}
