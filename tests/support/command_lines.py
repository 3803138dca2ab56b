"""Typical command lines of every command of cotenant, for tests that run all of them under some condition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cotenant.cli import full_parser
from cotenant.cli.parser import Parser, subcommands
from tests.support.onnx_models import write_model

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
KERNELS = "Name,Profile,Memory_footprint,SM_usage,Duration\nconv,1,0,80,1000\n"


class CommandLine(NamedTuple):
    """One command line; {other} is a tenant of another user, {out} a directory of the caller, {files} shared files."""

    words: str
    lasts: bool = False
    """Whether it runs until it is interrupted."""
    operator_only: bool = False
    """Whether it changes the tenant {other} or the node, which an ordinary user may not do."""


def command_of(line: CommandLine) -> tuple[str, ...]:
    """Return the name of the command: its words before any argument, as in ("softgpu", "create")."""
    words = line.words.split()
    for length in (2, 1):
        if tuple(words[:length]) in COMMANDS:
            return tuple(words[:length])
    raise AssertionError(f"{line.words!r} names no command")


def leaves(parser: Parser | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the name of every command that can be run itself, and is not only a group of commands."""
    own = full_parser() if parser is None else parser
    below = subcommands(own)
    if own.get_default("command") is not None:
        yield path
    for name, command in below.items():
        assert isinstance(command, Parser)
        yield from leaves(command, (*path, name))


COMMANDS = frozenset(leaves())

# In this order: some lines use what an earlier one has made, such as a software GPU.
LINES = (
    CommandLine("run -- true"),
    CommandLine("run --start-node no --online --slo 50ms -- true"),
    CommandLine("run --name lasting -- sleep 600", lasts=True),
    CommandLine("ps"),
    CommandLine("ps --all --json"),
    CommandLine("run --detach --name behind -- true"),
    CommandLine("logs behind"),
    CommandLine("top --once"),
    CommandLine("top", lasts=True),
    CommandLine("pause {other}", operator_only=True),
    CommandLine("pause --all-offline"),
    CommandLine("resume {other}", operator_only=True),
    CommandLine("evict {other} --grace 1s", operator_only=True),
    CommandLine("set {other} --priority 9", operator_only=True),
    CommandLine("set {other} --share 5%", operator_only=True),
    CommandLine("set --bound 20ms", operator_only=True),
    CommandLine("self"),
    CommandLine("events"),
    CommandLine("events --follow --json", lasts=True),
    CommandLine("explain {other}"),
    CommandLine("node status"),
    CommandLine("node status --json"),
    CommandLine("node reload", operator_only=True),
    CommandLine("node token --offline --memory 1GiB", operator_only=True),
    CommandLine("web --listen 127.0.0.1:0", lasts=True),
    CommandLine("doctor"),
    CommandLine("doctor --json"),
    CommandLine("selftest --gpu soft", lasts=True),
    CommandLine("config show"),
    CommandLine("config check"),
    CommandLine("gpu"),
    CommandLine("gpu --watch", lasts=True),
    CommandLine("softgpu create --gpu t4"),
    CommandLine("softgpu list"),
    CommandLine("softgpu inspect"),
    CommandLine("softgpu env"),
    CommandLine("softgpu fault --list"),
    CommandLine("softgpu fault slow-clock --for 10ms --factor 0.5"),
    CommandLine("softgpu reset"),
    CommandLine("softgpu set --mps-death-harms off"),
    CommandLine("softgpu models {out}/models alexnet"),
    CommandLine("profile import {files}/kernels.csv --device v100"),
    CommandLine("profile list"),
    CommandLine("profile show kernels"),
    CommandLine("profile diff kernels kernels"),
    CommandLine("profile import {files}/model.onnx --gpu v100"),
    CommandLine("profile correct --gpu v100 {files}/model.onnx:batch=1,latency=2ms"),
    CommandLine("play model --seconds 1"),
    CommandLine("whatif --online {files}/model.onnx:rate=50,slo=20ms --gpu v100 --seconds 2"),
    CommandLine("profile export kernels -o {out}/kernels.json"),
    CommandLine("profile record -- true"),
    CommandLine("profile prune --all"),
    CommandLine("advise --gpu soft:0 -- true"),
    CommandLine("trace --seconds 0.2 --show"),
    CommandLine("trace --last -o {out}/trace.json"),
    CommandLine("serve profile {out}/models --runtime replay --budget 1s"),
    CommandLine("serve plan {out}/models --runtime replay --rate alexnet=1"),
    CommandLine(
        "serve run {out}/models --runtime replay --http-port 0 --grpc-port -1 --metrics-port -1 --tenants no",
        lasts=True,
    ),
    CommandLine("softgpu destroy"),
    CommandLine("load http://127.0.0.1:9 --model alexnet=5 --duration 1s --warm-up 0s"),
    CommandLine("kubernetes check"),
    CommandLine("kubernetes controller", lasts=True),
    CommandLine("kubernetes webhook", lasts=True),
    CommandLine("kubernetes plugin --node-name n1 --home {out}/home --cdi-dir {out}/cdi", lasts=True),
    CommandLine("jobs -A"),
    CommandLine("jobs --watch", lasts=True),
    CommandLine("cluster plan"),
    CommandLine("cluster plan {scenarios}/cluster-round.json"),
    CommandLine("simulate {scenarios}/node-churn.toml --journal {out}/journal"),
    CommandLine("replay {out}/journal"),
    CommandLine("node stop --timeout 20s", operator_only=True),
    CommandLine("node", lasts=True),
    CommandLine("demo --story node"),
    CommandLine("demo --requests 10 --report {out}/demo.html", lasts=True),
    CommandLine("help run"),
    CommandLine("version"),
    CommandLine("completion bash"),
    CommandLine("man -o {out}/man"),
)


def write_files(directory: Path) -> None:
    """Write the files that {files} names."""
    directory.mkdir(exist_ok=True)
    (directory / "kernels.csv").write_text(KERNELS)
    write_model(directory / "model.onnx")


def arguments_of(line: CommandLine, *, other: str, out: Path, files: Path) -> list[str]:
    """Return the words of a command line with everything filled in."""
    return line.words.format(other=other, out=out, files=files, scenarios=SCENARIOS).split()
