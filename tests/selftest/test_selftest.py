"""The self-test passes on a software GPU, names what fails, and its report identifies nobody."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotenant.selftest.checks import CHECKS, Check, CheckFailedError, CheckSkippedError, run_checks
from cotenant.selftest.report import CheckResult, CheckStatus, make_report, without_secrets, write_report
from cotenant.selftest.site import SelftestSite
from tests.support.node_processes import NodeHarness

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    path = tmp_path_factory.mktemp("selftest") / "report.json"
    with NodeHarness() as harness:
        done = harness.run("selftest", "--gpu", "soft", "--report", str(path))
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        yield json.loads(path.read_text())


def test_every_check_passes_on_a_software_gpu_or_says_what_is_missing(report: dict[str, Any]) -> None:
    results = {check["name"]: check for check in report["checks"]}
    assert list(results) == [check.name for check in CHECKS]
    passed = {name for name, check in results.items() if check["status"] == "passed"}
    assert passed >= {"equivalence", "counting", "quota", "processes", "gate", "mps", "costs"}
    assert all(check["detail"] for check in results.values())
    assert report["is_software_gpu"]


def test_report_contains_no_name_of_user_host_or_file(report: dict[str, Any]) -> None:
    text = json.dumps(report)
    assert "/tmp" not in text
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text


def test_machine_without_a_driver_gets_one_sentence() -> None:
    with NodeHarness() as harness:
        done = harness.run("selftest")
        assert done.returncode == 2
        assert "no NVIDIA driver" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [("--gpu", "left"), ("--gpu", "soft", "--report", "/"), ("--gpu", "soft", "--report", "/no/such/file")]
)
def test_invalid_options_are_refused(words: tuple[str, ...]) -> None:
    with NodeHarness() as harness:
        done = harness.run("selftest", *words)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1


def test_result_of_a_check_is_its_exception() -> None:
    def fail(_: SelftestSite) -> tuple[str, dict[str, Any]]:
        raise CheckFailedError("3 of 4 launches")

    def skip(_: SelftestSite) -> tuple[str, dict[str, Any]]:
        raise CheckSkippedError("nothing to test")

    checks = (Check("a", "about a", fail), Check("b", "about b", skip), Check("c", "about c", lambda _: ("fine", {})))
    results = list(run_checks(SelftestSite("soft"), checks))
    assert [(result.name, result.status, result.detail) for result in results] == [
        ("a", CheckStatus.FAILED, "3 of 4 launches"),
        ("b", CheckStatus.SKIPPED, "nothing to test"),
        ("c", CheckStatus.PASSED, "fine"),
    ]
    report = make_report(results, {}, is_software_gpu=True)
    assert (report.passed, report.failed, report.skipped) == (1, 1, 1)


def test_program_that_changes_under_the_hook_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that changes one result code is found."""
    site = SelftestSite("soft")
    good = {"codes": {"launch 0": 0}, "is_computed": False, "checksum": 1}
    bad = {"codes": {"launch 0": 1}, "is_computed": False, "checksum": 1}
    monkeypatch.setattr(site, "run", lambda *_: good)
    monkeypatch.setattr(site, "run_hooked", lambda *_, **__: (bad, []))
    [result] = run_checks(site, CHECKS[:1])
    assert result.status is CheckStatus.FAILED
    assert "launch 0" in result.detail


def test_secrets_are_removed_from_texts() -> None:
    text = f"/home/alice/run failed on {socket.gethostname()} for GPU-12345678-abcd-abcd-abcd-123456789012"
    clean = without_secrets(text)
    assert "alice" not in clean
    assert socket.gethostname() not in clean
    assert "12345678" not in clean
    assert getpass.getuser() not in without_secrets(f"user {getpass.getuser()}")


def test_failed_write_leaves_an_existing_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("before")
    check = CheckResult(name="a", about="about a", status=CheckStatus.PASSED)
    report = make_report([check], {}, is_software_gpu=True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_report(path, report)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
