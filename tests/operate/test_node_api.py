"""The Python API: tables, and the example of its page on a software GPU."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import cotenant
from cotenant.errors import ConfigError, WorldError

EXAMPLE = Path(__file__).parents[2] / "examples" / "cuda_loop.py"


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
