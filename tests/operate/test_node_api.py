"""The Python API: tables, and the example of its page on a software GPU."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cotenant
from cotenant.errors import ConfigError, WorldError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cuda_loop.py"
PAGE = ROOT / "docs" / "how-to" / "python-api.md"


def tenant(name: str, **values: object) -> cotenant.TenantInfo:
    whole: dict[str, object] = dict.fromkeys(cotenant.TenantInfo._fields, 0)
    return cotenant.TenantInfo(**{**whole, "name": name, "kind": "online", "state": "running", **values})  # type: ignore[arg-type]


def test_a_table_is_text_for_print_and_html_for_jupyter_with_every_name_escaped() -> None:
    table = cotenant.TenantTable([tenant("web", p99_ns=12_000_000, slo_ns=50_000_000), tenant("<b>")])
    lines = str(table).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("web ")
    assert "12ms" in lines[1]
    assert "50ms" in lines[1]
    assert "<td>&lt;b&gt;</td>" in table._repr_html_()
    assert table["web"].slo_ns == 50_000_000
    with pytest.raises(KeyError):
        table["none"]


def test_names_of_the_package_are_imported_when_used_and_others_do_not_exist() -> None:
    assert set(cotenant.__all__) >= {"Node", "AsyncNode", "SoftwareGpus", "request", "Model"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cotenant.nothing  # noqa: B018


@pytest.mark.live
def test_programs_run_on_a_software_gpu_and_are_listed_changed_traced_and_ended(tmp_path: Path) -> None:
    with cotenant.SoftwareGpus() as gpus:
        node = gpus.node
        command = [sys.executable, str(EXAMPLE), "training", "--seconds", "600"]
        with node.run(command, name="train", gpu="soft:0", memory="2GiB") as train:
            assert node.tenants()["train"].memory_bytes == 2 << 30
            node.set("train", priority=8, memory="3GiB")
            assert node.pause("train") == ["train"]
            assert node.resume("train") == ["train"]
            found = node.tenants()["train"]
            assert (found.priority, found.memory_bytes, found.kind) == (8, 3 << 30, "offline")
            assert node.trace(tmp_path / "trace.json", 0.2).devices == 1
            assert [event["event"] for event in node.events(tenant="train")][:1] == ["joined"]
            assert asyncio.run(cotenant.AsyncNode(gpus.directory).tenants())["train"].pid == found.pid
            with pytest.raises(ConfigError, match="no tenant has the name"):
                node.pause("none")
            with pytest.raises(WorldError, match=r"greedy did not start: .*64GiB"):
                node.run(["true"], name="greedy", gpu="soft:0", memory="64GiB")
        assert train.returncode not in (None, 0)
        done = node.run([sys.executable, "-c", "print('here')"], name="short", capture=True)
        assert done.output() == "here\n"
        assert str(node.explain("short")).startswith("short is gone")
        with node.run([sys.executable, "-c", "1 / 0"], name="wrong") as wrong:
            assert wrong.wait() == 1
            assert "ZeroDivisionError" in wrong.errors()
        assert "ZeroDivisionError" in wrong.errors(), "it can be read after the end of the block, too"


@pytest.mark.live
def test_tenants_are_run_changed_and_ended_with_asyncio() -> None:
    async def run(directory: Path) -> tuple[int | None, str, int]:
        priority = 0
        node = cotenant.AsyncNode(directory)
        command = [sys.executable, str(EXAMPLE), "training", "--seconds", "600"]
        async with await node.run(command, name="train", gpu="soft:0") as train:
            await node.set("train", priority=9)
            async for tenants in node.watch(0.05):
                priority = tenants["train"].priority
                break
            assert train.returncode is None
        short = await node.run([sys.executable, "-c", "print('here')"], name="short", capture=True)
        return train.returncode, await short.output(), priority

    with cotenant.SoftwareGpus() as gpus:
        ended, output, priority = asyncio.run(run(gpus.directory))
    assert ended not in (None, 0)
    assert (output, priority) == ("here\n", 9)


def code_blocks() -> list[str]:
    """Return the Python examples of the page about the API, in their order."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


PROGRAM = f"""
import pathlib, subprocess, sys, time
loop = subprocess.Popen([sys.executable, {str(EXAMPLE)!r}, "training", "--seconds", "600"])
shown = pathlib.Path("shown")
while shown.exists() and "web" not in shown.read_text():
    time.sleep(0.05)
loop.terminate()
loop.wait()
"""
"""Uses the GPU until an example has shown it, however slow the machine is."""


@pytest.mark.live
def test_examples_of_the_page_run_as_written(tmp_path: Path) -> None:
    for name in ("serve.py", "train.py"):
        (tmp_path / name).write_text(PROGRAM)
    first, concurrent, conftest, test = code_blocks()
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with cotenant.SoftwareGpus() as gpus:
        for number, text in enumerate((first, concurrent)):
            file = tmp_path / f"example{number}.py"
            file.write_text(text)
            own = {**environ, "COTENANT_DIRECTORY": str(gpus.directory)}
            with (tmp_path / "shown").open("w") as shown:
                words = [sys.executable, "-u", file.name]
                done = subprocess.run(
                    words, cwd=tmp_path, env=own, stdout=shown, stderr=subprocess.PIPE, text=True, check=False
                )
            assert done.returncode == 0, done.stderr
            assert "web" in (tmp_path / "shown").read_text()
    (tmp_path / "shown").unlink()
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_train.py").write_text(test)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "test_train.py",
    ]
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
