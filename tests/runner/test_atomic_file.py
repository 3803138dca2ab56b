"""Files that users name are replaced as a whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.runner.atomic_file import check_replaceable, replace_file

_KILLED_WHILE_WRITING = """
import os, pathlib, signal, sys
from cotenant.runner import atomic_file
write = pathlib.Path.write_bytes
def half(path, data):
    write(path, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.write_bytes = half
atomic_file.replace_file(pathlib.Path(sys.argv[1]), b"new" * 1000)
"""


def test_a_process_that_is_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", _KILLED_WHILE_WRITING, str(report)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert report.read_bytes() == b"old"


def test_an_interrupt_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.html"
    report.write_bytes(b"old")

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(report, b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"report.html": b"old"}


def test_modes_and_links_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    mask = os.umask(0o027)
    try:
        replace_file(real, b"1")
    finally:
        os.umask(mask)
    assert real.stat().st_mode & 0o777 == 0o640
    real.chmod(0o604)
    link.symlink_to(real)
    replace_file(link, b"2")
    assert link.is_symlink()
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (b"2", 0o604)


def test_what_is_no_file_is_written_directly(tmp_path: Path) -> None:
    replace_file(Path("/dev/null"), b"1")
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(pipe, b"2")
        assert os.read(reader, 9) == b"2"
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_a_bad_path_is_found_before_the_work_and_nothing_is_left(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    check_replaceable(report)
    assert list(tmp_path.iterdir()) == []
    report.write_bytes(b"old")
    check_replaceable(report)
    assert report.read_bytes() == b"old"
    for path, error in ((tmp_path, IsADirectoryError), (tmp_path / "none" / "x", FileNotFoundError)):
        with pytest.raises(error):
            check_replaceable(path)
