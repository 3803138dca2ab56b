"""Faults from the command line: the list of kinds, their effects, and one-line errors for invalid options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from cotenant.cli import main
from cotenant.softgpu.fault import KINDS
from tests.support.node_processes import NodeHarness

pytestmark = pytest.mark.live

WAITER = (
    "import ctypes, sys\n"
    "cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()\n"
    "assert not cuda.cuInit(0) and not cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)\n"
    "print('ready', flush=True)\n"
    "sys.stdin.read()\n"
    "print(cuda.cuCtxSynchronize())\n"
)


@pytest.fixture
def gpu(node_harness: NodeHarness) -> Iterator[NodeHarness]:
    done = node_harness.run("softgpu", "create", "--gpu", "v100", "--mps-death-harms", "off")
    assert done.returncode == 0, done.stderr
    yield node_harness
    node_harness.run("softgpu", "destroy")


def test_fault_kinds_are_listed(gpu: NodeHarness) -> None:
    kinds = gpu.json("softgpu", "fault", "--list")["kinds"]
    assert [kind["kind"] for kind in kinds] == list(KINDS)
    shown = gpu.run("softgpu", "fault", "--list").stdout
    assert "illegal-address" in shown
    assert "device-lost" in shown
    assert " ECC_UNCORRECTABLE" in shown


def test_fault_of_a_client_is_in_the_counters(gpu: NodeHarness) -> None:
    variables = gpu.json("softgpu", "env")
    client = subprocess.Popen(
        [sys.executable, "-c", WAITER],
        env={**gpu.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n", "it has its context"
    assert len(gpu.json("softgpu", "inspect")["clients"]) == 1
    done = gpu.json("softgpu", "fault", "illegal-address", "--client", str(client.pid))
    assert done == {"gpu": 0, "kind": "illegal-address", "struck": 1}
    counters = gpu.json("softgpu", "inspect")
    assert [(entry["xid"], entry["pid"]) for entry in counters["xids"]] == [(31, client.pid)]
    assert counters["clients"][0]["fault"] == 700
    assert "MMU fault" in gpu.run("softgpu", "inspect").stdout
    assert client.communicate("")[0].strip() == "700"
    again = gpu.run("softgpu", "fault", "illegal-address")
    assert again.returncode == 2
    assert "to inject the fault into" in again.stderr


def test_device_can_be_slowed_lost_and_reset(gpu: NodeHarness) -> None:
    assert gpu.json("softgpu", "fault", "slow-clock", "--factor", "0.25")["factor"] == 0.25
    assert gpu.json("softgpu", "inspect")["speed"] == 0.25
    assert gpu.json("softgpu", "fault", "device-lost")["struck"] == 0
    assert gpu.json("softgpu", "inspect")["lost"]
    assert gpu.run("softgpu", "reset").returncode == 0
    counters = gpu.json("softgpu", "inspect")
    assert (counters["lost"], counters["speed"], counters["mps_death_harms"]) == (False, 1, False)
    assert gpu.run("softgpu", "set", "--mps-death-harms", "on").returncode == 0
    assert gpu.json("softgpu", "inspect")["mps_death_harms"]


REFUSED = (
    (("fault",), "the kinds are"),
    (("fault", "flood"), "illegal-address"),
    (("fault", "ecc", "--client", "1"), "whole device"),
    (("fault", "ecc", "--at-launch", "1"), "does not occur at a launch"),
    (("fault", "assert", "--for", "1s"), "only hang and slow-clock"),
    (("fault", "assert", "--factor", "0.5"), "only slow-clock"),
    (("fault", "assert", "--client", "me"), "whole number from 1 on"),
    (("fault", "assert", "--client", "4000000"), "no client of software GPU 0"),
    (("fault", "assert", "--gpu", "7"), "no such software GPU"),
    (("fault", "hang", "--for", "soon"), "--for"),
    (("fault", "mps-server-death"), "no MPS client"),
    (("fault", "slow-clock"), "such as 0.5"),
    (("fault", "slow-clock", "--factor", "2"), "from 0.1 to 1"),
    (("reset", "9"), "no such software GPU"),
    (("set", "--mps-death-harms", "maybe"), '"on" or "off"'),
    (("create", "--mps-death-harms", "maybe"), '"on" or "off"'),
)


def test_invalid_fault_options_are_reported_in_one_line(
    gpu: NodeHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in this process, because a process per case would be slower."""
    for name in ("COTENANT_DIRECTORY", "COTENANT_CONFIG"):
        monkeypatch.setenv(name, gpu.environ[name])
    for words, sentence in REFUSED:
        assert main(["softgpu", *words]) == 2, words
        errors = capsys.readouterr().err
        assert sentence in errors
        assert len(errors.strip().splitlines()) == 1
