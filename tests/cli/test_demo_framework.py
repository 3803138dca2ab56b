"""The demo of a framework: what it needs, and how it compares runs."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cotenant.cli.demo import framework
from cotenant.cli.demo.framework import Results, check_framework
from cotenant.errors import ConfigError


def test_missing_packages_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="pip install tinygrad"):
        check_framework()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ConfigError, match="apt-get install clang"):
        check_framework()
    monkeypatch.setattr(shutil, "which", lambda name: name)
    check_framework()


def written(directory: Path, losses: list[float], **arrays: float) -> Results:
    results = Results(directory)
    (directory / "losses").write_text("".join(f"{loss.hex()}\n" for loss in losses))
    values: dict[str, Any] = {name: np.float32(value) for name, value in arrays.items()}
    np.savez(directory / "weights.npz", **values)
    return results


def test_one_bit_makes_a_difference(tmp_path: Path) -> None:
    first = written(tmp_path / "1", [2.0, 1.0], a=1.0, b=2.0)
    assert first.is_same(written(tmp_path / "2", [2.0, 1.0], a=1.0, b=2.0), "weights")
    changed = written(tmp_path / "3", [2.0, 1.0], a=1.0, b=float(np.nextafter(np.float32(2), np.float32(3))))
    assert not first.is_same(changed, "weights")
    assert 0 < first.error_of(changed, "weights") < framework.TOLERANCE
    assert not first.is_same(written(tmp_path / "4", [2.0], a=1.0, b=2.0), "weights")
    assert not first.is_same(written(tmp_path / "5", [2.0, 1.0], a=1.0), "weights")
    assert first.error_of(written(tmp_path / "6", [2.0], a=1.0, b=2.0), "weights") == float("inf")
    assert not Results(tmp_path / "7").is_same(first, "weights")
