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


def test_postponed_annotations_are_resolved(tmp_path: Path) -> None:
    path = tmp_path / "typed.py"
    typed = "from __future__ import annotations\nfrom dataclasses import dataclass, field, InitVar\n"
    data = "@dataclass\nclass Size:\n    odd: InitVar[int] = 2\n    rows: list[int] = field(default_factory=list)\n"
    path.write_text(typed + data + MODEL.format(name="'typed'"))
    assert list(models_in(path)) == ["typed"]


def test_model_files_import_helpers_of_their_own_folder(tmp_path: Path) -> None:
    path = list(sys.path)
    names: list[str] = []
    for folder_name in ("one", "two"):
        (tmp_path / folder_name).mkdir()
        (tmp_path / folder_name / "cotenant_test_helper.py").write_text(f"NAME = {folder_name!r}\n")
        file = tmp_path / folder_name / "same.py"
        file.write_text("from cotenant_test_helper import NAME\n" + MODEL.format(name="NAME"))
        names += models_in(file)
    assert names == ["one", "two"]
    assert sys.path == path
    assert len({name for name in modules() if name.startswith("cotenant_model_same_")}) == 2
    sys.modules.pop("cotenant_test_helper")


def test_model_files_of_one_folder_share_helper_modules(tmp_path: Path) -> None:
    (tmp_path / "cotenant_test_shared.py").write_text("seen = []\n")
    for file_name in ("one", "two"):
        header = f"import cotenant_test_shared as shared\nshared.seen.append({file_name!r})\n"
        (tmp_path / f"{file_name}.py").write_text(header + MODEL.format(name="'-'.join(shared.seen)"))
    assert [*models_in(tmp_path / "one.py"), *models_in(tmp_path / "two.py")] == ["one", "one-two"]
    sys.modules.pop("cotenant_test_shared")


def test_model_import_tolerates_imports_of_other_threads(tmp_path: Path) -> None:
    """Imports that fail halfway remove their modules again."""
    file = tmp_path / "one.py"
    file.write_text(MODEL.format(name="'one'"))
    stop = threading.Event()

    def import_and_fail() -> None:
        while not stop.is_set():
            for number in range(100):
                sys.modules[f"cotenant_test_{number}"] = sys
            for number in range(100):
                del sys.modules[f"cotenant_test_{number}"]

    previous_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=import_and_fail)
    thread.start()
    try:
        for _ in range(200):
            assert list(models_in(file)) == ["one"]
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(previous_interval)


def test_failed_import_restores_modules_and_path(tmp_path: Path) -> None:
    path, previous_modules = list(sys.path), modules()
    file = tmp_path / "fails.py"
    file.write_text("raise SystemExit(3)")
    with pytest.raises(ModelLoadError, match="SystemExit"):
        models_in(file)
    assert (sys.path, modules()) == (path, previous_modules)
    file.write_text(MODEL.format(name="'well'"))
    models_in(file)
    (served,) = modules() - previous_modules
    previous_module = sys.modules[served]
    file.write_text("1 / 0")
    with pytest.raises(ModelLoadError, match="ZeroDivisionError"):
        models_in(file)
    assert sys.modules[served] is previous_module
