"""Do hook, socket and pages work from inside other pid, mount and user namespaces?"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.domain.tenant import Tenant
from cotenant.live.ledger import look_at
from cotenant.policy.schedule import roster
from tests.e2e.containers import Container
from tests.e2e.stage import Stage, alive, until

PROGRAMS = Path(__file__).parents[1] / "live" / "programs"
WORK = ("--", sys.executable, str(PROGRAMS / "tenant.py"))
WAYS = ("shim", "preload")
TAKEN = 7 << 20
"""What the program holds at least of the device, without its context."""


@pytest.fixture(scope="module")
def gpu() -> Iterator[Stage]:
    """A node outside, with a soft GPU."""
    with Stage() as stage:
        assert stage.run("softgpu", "create", "--gpu", "v100").returncode == 0
        stage.node()
        yield stage
        stage.run("softgpu", "destroy")


def tenant_of(stage: Stage, name: str) -> Tenant:
    roll = stage.roll()
    assert roll is not None
    [found] = [view.tenant for view in roll.tenants if view.tenant.name == name]
    return found


def page_of(stage: Stage, slot: int) -> dict[str, Any]:
    with (stage.places.pages / "gate-0").open("rb") as file:
        file.seek(roster.page_offset(slot))
        return roster.read_page(file.read(roster.PAGE_BYTES))


def launches(stage: Stage, name: str) -> int:
    """What the tenant's page at the gate says, if it is this tenant's."""
    terms = tenant_of(stage, name).terms
    page = page_of(stage, terms.slot)
    return int(page["launches"]) if page["generation"] == terms.generation else 0


def held(stage: Stage, name: str) -> int:
    """What the ledger says that the tenant holds of the device."""
    terms = tenant_of(stage, name).terms
    look = look_at(stage.places.pages, 0)
    assert look is not None
    account = look.accounts.get(terms.slot)
    return account.held_bytes if account is not None and account.generation == terms.generation else 0


def lines(stage: Stage) -> int:
    """Processes in the ledger of the device."""
    look = look_at(stage.places.pages, 0)
    return 0 if look is None else sum(len(account.lines) for account in look.accounts.values())


def namespaces(pid: int) -> tuple[str, str]:
    return str(Path(f"/proc/{pid}/ns/pid").readlink()), str(Path(f"/proc/{pid}/ns/mnt").readlink())


@pytest.mark.parametrize("way", WAYS)
def test_a_tenant_in_a_container_is_at_the_gate_and_its_death_is_seen(way: str, gpu: Stage) -> None:
    inside, name = Container(gpu), f"boxed-{way}"
    process = inside.start("run", "--gpu", "soft:0", "--hook", way, "--name", name, *WORK)
    until(lambda: process.poll() is not None or name in gpu.names())
    assert process.poll() is None, process.communicate()
    until(lambda: process.poll() is not None or launches(gpu, name) > 100)
    assert held(gpu, name) >= TAKEN
    pid = tenant_of(gpu, name).pid
    assert namespaces(pid)[0] != namespaces(os.getpid())[0]  # the kernel's word, in our numbers
    assert namespaces(pid)[1] != namespaces(os.getpid())[1]
    paused = gpu.run("pause", name)  # the page's rules reach it
    assert paused.returncode == 0
    terms = tenant_of(gpu, name).terms
    until(lambda: page_of(gpu, terms.slot)["wanted_ns"] != 0)
    os.kill(pid, signal.SIGKILL)
    until(lambda: name in gpu.endings())
    assert gpu.endings()[name].startswith("lost")
    until(lambda: lines(gpu) == 0)  # of a process that the node counts otherwise
    process.wait()


def test_the_end_of_a_program_in_a_container_is_told(gpu: Stage) -> None:
    done = Container(gpu).run("run", "--gpu", "soft:0", "--name", "told", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr
    assert gpu.endings()["told"] == "exit 7"


def test_a_container_without_proc_runs_too(gpu: Stage) -> None:
    """/proc shows the pids of outside: no process is taken for one of ours, and the tenant is at the gate."""
    inside = Container(gpu, proc=False)
    process = inside.start("run", "--gpu", "soft:0", "--name", "bare", *WORK, before="mount -t tmpfs none /proc")
    until(lambda: process.poll() is not None or ("bare" in gpu.names() and launches(gpu, "bare") > 100))
    assert process.poll() is None, process.communicate()
    seen = page_of(gpu, tenant_of(gpu, "bare").terms.slot)["launches"]
    until(lambda: page_of(gpu, tenant_of(gpu, "bare").terms.slot)["launches"] > seen + 1000)  # many looks later
    assert held(gpu, "bare") >= TAKEN
    os.kill(tenant_of(gpu, "bare").pid, signal.SIGKILL)
    until(lambda: lines(gpu) == 0)


def test_a_program_that_leaves_our_directories_stays_at_the_gate(gpu: Stage) -> None:
    """The names beside its records are gone: descriptors and the libraries that are loaded do."""
    hide = f"mount -t tmpfs none {gpu.places.runtime}/hook; exec {sys.executable} {PROGRAMS / 'tenant.py'}"
    words = ("unshare", "--mount", "sh", "-c", hide)
    Container(gpu)  # skips where namespaces are not permitted
    tenant = gpu.start("run", "--gpu", "soft:0", "--hook", "preload", "--name", "hidden", "--", *words)
    until(lambda: tenant.poll() is not None or ("hidden" in gpu.names() and launches(gpu, "hidden") > 100))
    assert tenant.poll() is None, tenant.communicate()
    tenant.kill()
    until(lambda: "hidden" not in gpu.names() and lines(gpu) == 0)


def test_a_user_namespace_is_somebody_else_to_the_node(gpu: Stage) -> None:
    """Root inside is whoever made the namespace outside: the same user may connect."""
    inside = Container(gpu, "--user", "--map-root-user")
    done = inside.run("run", "--gpu", "soft:0", "--name", "mapped", "--", "sh", "-c", "id -u")
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
    roll = gpu.roll()
    assert roll is not None
    assert [gone.tenant.uid for gone in roll.departed if gone.tenant.name == "mapped"] == [os.getuid()]


def test_what_a_run_outside_keeps_is_not_swept_away_from_inside(gpu: Stage) -> None:
    """Both see one directory, and neither the other's processes."""
    outside = gpu.tenant("outside", "--gpu", "soft:0", *WORK)
    kept = list((gpu.places.runtime / "hook").glob("run-*"))
    assert len(kept) == 1
    done = Container(gpu).run("run", "--gpu", "soft:0", "--name", "swept", "--", "true")
    assert done.returncode == 0, done.stderr
    assert list((gpu.places.runtime / "hook").glob("run-*")) == kept
    assert alive(outside.pid)
    outside.kill()
    outside.wait()
    assert gpu.run("run", "--gpu", "soft:0", "--", "true").returncode == 0
    assert list((gpu.places.runtime / "hook").glob("run-*")) == []
