"""Import of Python model files."""

import sys
import threading
from pathlib import Path

import pytest

from cotenant.serve.runtime.model import ModelLoadError
from cotenant.serve.runtime.python import models_in

pytestmark = pytest.mark.live

MODEL = """
from cotenant.api import Model

m = Model(lambda tensors: tensors, name={name}, inputs={{"X": ("FP32", (1,))}}, outputs={{"X": ("FP32", (1,))}})
"""


def modules() -> set[str]:
    return {name for name in sys.modules if name.startswith("cotenant_model_")}


def test_annotations_that_are_text_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "typed.py"
    typed = "from __future__ import annotations\nfrom dataclasses import dataclass, field, InitVar\n"
    data = "@dataclass\nclass Size:\n    odd: InitVar[int] = 2\n    rows: list[int] = field(default_factory=list)\n"
    path.write_text(typed + data + MODEL.format(name="'typed'"))
    assert list(models_in(path)) == ["typed"]


def test_each_file_imports_what_lies_beside_it(tmp_path: Path) -> None:
    path = list(sys.path)
    found: list[str] = []
    for word in ("one", "two"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "cotenant_test_helper.py").write_text(f"NAME = {word!r}\n")
        file = tmp_path / word / "same.py"
        file.write_text("from cotenant_test_helper import NAME\n" + MODEL.format(name="NAME"))
        found += models_in(file)
    assert found == ["one", "two"]
    assert sys.path == path
    assert len({name for name in modules() if name.startswith("cotenant_model_same_")}) == 2
    sys.modules.pop("cotenant_test_helper")


def test_two_files_of_a_folder_share_what_lies_beside_them(tmp_path: Path) -> None:
    (tmp_path / "cotenant_test_shared.py").write_text("seen = []\n")
    for word in ("one", "two"):
        begin = f"import cotenant_test_shared as shared\nshared.seen.append({word!r})\n"
        (tmp_path / f"{word}.py").write_text(begin + MODEL.format(name="'-'.join(shared.seen)"))
    assert [*models_in(tmp_path / "one.py"), *models_in(tmp_path / "two.py")] == ["one", "one-two"]
    sys.modules.pop("cotenant_test_shared")


def test_other_threads_may_import_meanwhile(tmp_path: Path) -> None:
    """Imports that fail halfway remove their modules again."""
    file = tmp_path / "one.py"
    file.write_text(MODEL.format(name="'one'"))
    over = threading.Event()

    def import_and_fail() -> None:
        while not over.is_set():
            for number in range(100):
                sys.modules[f"cotenant_test_{number}"] = sys
            for number in range(100):
                del sys.modules[f"cotenant_test_{number}"]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=import_and_fail)
    thread.start()
    try:
        for _ in range(200):
            assert list(models_in(file)) == ["one"]
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)


def test_one_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path, before = list(sys.path), modules()
    file = tmp_path / "fails.py"
    file.write_text("raise SystemExit(3)")
    with pytest.raises(ModelLoadError, match="SystemExit"):
        models_in(file)
    assert (sys.path, modules()) == (path, before)
    file.write_text(MODEL.format(name="'well'"))
    models_in(file)
    (served,) = modules() - before
    kept = sys.modules[served]
    file.write_text("1 / 0")
    with pytest.raises(ModelLoadError, match="ZeroDivisionError"):
        models_in(file)
    assert sys.modules[served] is kept
