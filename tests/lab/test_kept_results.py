"""Tests that results of cases are kept, found again, and not mixed up."""

from pathlib import Path

import pytest

from cotenant.errors import ConfigError
from cotenant_lab.study import kept_results
from cotenant_lab.study.kept_results import keep_results
from cotenant_lab.study.workers import mapping

RUNS: list[int] = []


def double(number: int) -> int:
    RUNS.append(number)
    return 2 * number


def doubled(numbers: list[int], directory: Path | None) -> list[int]:
    RUNS.clear()
    with keep_results(directory), mapping(1) as mapped:
        return list(mapped(double, numbers))


def test_interrupted_run_continues_with_the_cases_that_are_missing(tmp_path: Path) -> None:
    kept = tmp_path / "cases"
    assert doubled([1, 2], kept) == [2, 4]
    assert doubled([1, 2, 3], kept) == [2, 4, 6]
    assert RUNS == [3]
    assert doubled([1], None) == [2]
    assert RUNS == [1]


def test_damaged_result_and_other_code_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "cases"
    doubled([1, 2], kept)
    next(kept.iterdir()).write_bytes(b"")
    assert doubled([1, 2], kept) == [2, 4]
    assert len(RUNS) == 1
    monkeypatch.setattr(kept_results, "code_version", lambda: "changed")
    doubled([1, 2], kept)
    assert RUNS == [1, 2]


def test_worker_processes_use_kept_results(tmp_path: Path) -> None:
    kept = tmp_path / "cases"
    doubled([1, 2, 3, 4], kept)
    with keep_results(kept), mapping(2) as mapped:
        assert list(mapped(double, [1, 2, 3, 4])) == [2, 4, 6, 8]
    assert len(list(kept.iterdir())) == 4


def test_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "cases"
    kept.mkdir()
    kept.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by others"):
        doubled([1], kept)
