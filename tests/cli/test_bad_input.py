"""Tests that every invalid input is answered by one line with the field, the value and the remedy."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.cli import main
from tests.support.node_processes import COTENANT, NodeHarness

pytestmark = pytest.mark.live

LONG = "/" + "x" * 120
FILES = {
    "wrong.toml": "[node]\nslots = 'many'\n",
    "unknown.toml": "[node]\nslot = 4\n",
    "syntax.toml": "[node\n",
    "unit.toml": "[node]\ngrace = 10\n",
    "offline.toml": "[run]\nslo = '50ms'\n",
    "gpu.toml": "[[gpu]]\nname = 'a'\n",
    "scenario.toml": "seed = 1\nduration = '1s'\n",
    "bad-scenario.toml": "seed = 1\nduration = 1\n",
    "bad-kernels.toml": "seed = 1\npolicies = ['fill', 'ajar']\ntenant = []\n[device]\npreset = 'v100'\n",
    "bad-tenant.toml": "seed = 1\npolicies = ['fill']\ndevice.preset = 'v100'\n[[tenant]]\nnam = 'a'\n",
    "letter": "Dear journal,\n",
    "broken.json": '{"traceEvents": 7}',
    "kernels.csv": "Name,Profile,Memory_footprint,SM_usage,Duration\nconv,1,0,80,1000\n",
}

# By command line: the words that the error message must contain.
MISTAKES: dict[str, tuple[str, ...]] = {
    "": ("COMMAND", "--help"),
    "dance": ("unknown command 'dance'", "`cotenant --help`"),
    "run": ("COMMAND", "name the program to run"),
    "run --": ("COMMAND", "name the program to run"),
    "run --online --slo 50ms": ("COMMAND", "name the program to run"),
    "run --frobnicate -- true": ("unknown flag --frobnicate", "`cotenant run --help`"),
    "run --priorty 3 -- true": ("unknown flag --priorty", "did you mean --priority?", "`cotenant run --help`"),
    "rn": ("unknown command 'rn'", "did you mean run?", "`cotenant --help`"),
    "serve rnu": ("unknown command 'rnu'", "did you mean run?", "`cotenant serve --help`"),
    "cluster pln": ("unknown command 'pln'", "did you mean plan?", "`cotenant cluster --help`"),
    "cluster plan s.json --save t.json": ("--save", "'t.json'", "omit one of them"),
    "jobs -A -n team": ("--namespace", "'team'", "omit one of them"),
    "ps extra": ("unexpected argument 'extra'", "`cotenant ps --help`"),
    "run --priority 12 -- true": ("--priority", "'12'", "<= 9"),
    "run --priority -1 -- true": ("--priority", "'-1'", ">= 0"),
    "run --priority high -- true": ("--priority", "'high'", "integer"),
    "run --slo 50 --online -- true": ("--slo", "'50'", '"50ms"'),
    "run --slo 50MB --online -- true": ("--slo", "'50MB'", '"50ms"'),
    "run --slo -5ms --online -- true": ("--slo", "'-5ms'", "must not be negative"),
    "run --share -5% -- true": ("--share", "'-5%'", "must not be negative"),
    "run --memory -4GiB -- true": ("--memory", "'-4GiB'", "must not be negative"),
    "run --slo --online -- true": ("--slo", "needs a value"),
    "run --slo 50ms -- true": ("run.slo", "'50ms'", "add --online"),
    "run --online --on-pressure suspend -- true": ("run.on_pressure", "'suspend'", "--on-pressure"),
    "run --slo 50ms --offline -- true": ("run.slo", "'50ms'", "add --online"),
    "run --online --offline -- true": ("--offline", "--online", "--help"),
    "run --memory 4 -- true": ("--memory", "'4'", '"4GiB"'),
    "run --memory 4ms -- true": ("--memory", "'4ms'", '"4GiB"'),
    "run --memory 99999999999999TiB -- true": ("--memory", "too large"),
    "run --share 130% -- true": ("--share", "'130%'", '"100%"'),
    "run --share half -- true": ("--share", "'half'", '"30%"'),
    "run --name ../etc -- true": ("--name", "'../etc'", "letters, digits"),
    "run --name -- true": ("--name", "--help"),
    "run --config none.toml -- true": ("config", "none.toml", "no such file"),
    "run --config . -- true": ("config", "cannot be read"),
    "run --config offline.toml -- true": ("run.slo", "'50ms'", "add --online"),
    f"run --runtime-dir {LONG} -- true": ("directories.runtime", "too long", "at most 93"),
    "run --state-dir letter/below -- true": ("directories.state", "letter/below", "choose another"),
    "run --restart sometimes -- true": ("--restart", "'sometimes'", "no, on-failure or always"),
    "run --restart always:0 -- true": ("--restart", "'always:0'", "no, on-failure or always"),
    "run --restart on-failure:many -- true": ("--restart", "'on-failure:many'", "no, on-failure or always"),
    "run --restart-delay 5 -- true": ("--restart-delay", "'5'", '"50ms"'),
    "run --on-pressure hide -- true": ("--on-pressure", "'hide'", "evict", "suspend"),
    "run --grace 5 -- true": ("--grace", "'5'", '"50ms"'),
    "evict": ("NAME", "--help"),
    "evict ../etc": ("NAME", "'../etc'", "cotenant ps"),
    "evict a --grace soon": ("--grace", "'soon'", '"50ms"'),
    "node --slots 0": ("--slots", "'0'", ">= 1"),
    "node --slots 5000": ("--slots", "'5000'", "<= 1024"),
    "node --slots many": ("--slots", "'many'", "integer"),
    "node --reconnect-grace 10": ("--reconnect-grace", "'10'", '"50ms"'),
    "node --gpu v100": ("--gpu", "'v100'", "NAME=MEMORY"),
    "node --gpu v100=lots": ("--gpu", "'v100=lots'", "NAME=MEMORY"),
    "node --gpu =16GiB": ("--gpu", "'=16GiB'", "NAME=MEMORY"),
    "node --place anywhere": ("--place", "'anywhere'", "spread, pack or predict"),
    "node --operator-groups no-such-group": ("operators.groups", "'no-such-group'", "create it"),
    "node --operator-users no-such-user": ("operators.users", "'no-such-user'", "create it"),
    "node --runtime-dir letter": ("directories.runtime", "letter", "choose another"),
    "node --state-dir letter/below": ("directories.state", "letter/below", "choose another"),
    "config": ("show|check", "--help"),
    "config fix": ("show|check", "fix", "--help"),
    "config check --config wrong.toml": ("wrong.toml:2", "node.slots", "'many'", "integer"),
    "config check --config unknown.toml": ("unknown.toml:2", "node.slot", "4", "no such field"),
    "config check --config syntax.toml": ("syntax.toml:1", "correct the line"),
    "config check --config unit.toml": ("unit.toml:2", "node.grace", "10", '"50ms"'),
    "config check --config gpu.toml": ("gpu.toml:1", "memory", "required"),
    "config show --config latin.toml": ("config", "latin.toml", "not UTF-8"),
    "config check --config none.toml": ("config", "none.toml", "check the path"),
    "ps --config none.toml": ("config", "none.toml", "check the path"),
    "doctor --config none.toml": ("config", "none.toml", "check the path"),
    "self": ("COTENANT_SOCKET", "''", "cotenant run"),
    "replay": ("FILE", "--help"),
    "replay none": ("journal", "none", "check the path"),
    "replay .": ("journal", "cannot be read"),
    "replay letter": ("journal", "letter", "not a cotenant journal"),
    "replay /proc/self/mem": ("journal", "/proc/self/mem", "cannot be read"),
    "profile": ("COMMAND", "--help"),
    "profile forget": ("forget", "--help"),
    "profile show": ("TASK", "--help"),
    "profile show x --kernels 0": ("--kernels", "0", "at least one"),
    "profile show letter": ("table", "letter", "first line"),
    "profile diff letter letter": ("table", "letter", "first line"),
    "profile import": ("FILE", "--help"),
    "profile import none.json": ("FILE", "none.json", "No such file"),
    "profile import .": ("FILE", "'.'", "Is a directory"),
    "profile import letter": ("table", "letter", "first line"),
    "profile import broken.json": ("trace", "broken.json", "no PyTorch profiler trace"),
    "profile import kernels.csv kernels.csv --task one": ("--task", "'one'", "one by one"),
    "profile import kernels.csv kernels.csv --image i": ("--image", "one timeline", "2 recordings"),
    "profile import kernels.csv --image none/i": ("FILE", "none/i", "cannot be written"),
    "profile prune": ("prune", "--task", "--all"),
    "profile prune --older-than 3": ("--older-than", "'3'", '"50ms"'),
    "profile prune --keep-latest -1": ("--keep-latest", "-1", "0 or more"),
    "profile prune --task none": ("--task", "'none'", "profile list"),
    "trace": ("--output", "trace -o trace.json"),
    "trace -o none/t.json --last": ("--output", "none/t.json", "does not exist"),
    "trace -o . --last": ("--output", "'.'", "name a file"),
    "trace -o t.json --seconds 0": ("--seconds", "'0'", "above 0"),
    "trace --last --seconds 1 -o t.json": ("--seconds", "--last", "not allowed"),
    "simulate none.toml": ("scenario", "none.toml", "check the path"),
    "simulate .": ("scenario", "cannot be read"),
    "simulate latin.toml": ("scenario", "latin.toml", "not UTF-8"),
    "simulate bad-scenario.toml": ("bad-scenario.toml:2", "duration", "1"),
    "simulate bad-kernels.toml": ("bad-kernels.toml:2", "policies[1]", "'ajar'", "choose open-slice", "oracle-slice"),
    "simulate bad-tenant.toml": ("bad-tenant.toml:5", "tenant[0].nam", "'a'", "no such field", "name, kind, priority"),
    "simulate scenario.toml --seed x": ("--seed", "'x'", "--help"),
    "simulate scenario.toml --journal none/journal": ("--journal", "none/journal", "choose another"),
    "demo --keep letter/below": ("--keep", "letter/below", "choose another"),
    "demo --story none": ("--story", "'none'", "--help"),
    "demo --story node --report x.html": ("--report", "x.html", "omit --report"),
    "demo --story node --requests 20": ("--requests", "20", "omit --requests"),
    "demo --story framework --requests 20": ("--requests", "20", "omit --requests"),
    "demo --requests 1": ("--requests", "1", "choose 10"),
    "demo --report none/x.html": ("--report", "none/x.html", "does not exist"),
}


@pytest.fixture
def bad_files(node_harness: NodeHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with invalid files, isolated from the machine's own configuration."""
    for name, text in FILES.items():
        (node_harness.home / name).write_text(text)
    (node_harness.home / "latin.toml").write_bytes(b"# caf\xe9\n")
    monkeypatch.chdir(node_harness.home)
    for name, value in node_harness.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("COTENANT_SOCKET", raising=False)
    yield node_harness.home
    assert not node_harness.directories.tenant_socket.exists(), "an invalid command must not start a node"


@pytest.mark.parametrize("command_line", MISTAKES)
def test_invalid_command_line_prints_one_line_with_its_remedy(
    bad_files: Path, capsys: pytest.CaptureFixture[str], command_line: str
) -> None:
    try:
        code = main(command_line.split())
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]  # argparse exits with a number
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("cotenant: ")
    for word in MISTAKES[command_line]:
        assert word in line
    assert not re.search(r"msgspec|`int`|regex|Errno|object at", line), "the message shows no internals"


@pytest.mark.parametrize(
    "name, value, remedy",
    [
        ("CUDA_DEVICE_MEMORY_LIMIT", "lots", "4096m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "-1", "4096m"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "99999999999999999999g", "too large"),
        ("CUDA_DEVICE_SM_LIMIT", "130", "from 0 to 100"),
        ("CUDA_DEVICE_SM_LIMIT_0", "30%", "from 0 to 100"),
    ],
)
def test_invalid_environment_variable_is_named_in_the_error(
    bad_files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    remedy: str,
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["run", "--", "true"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cotenant: {name} = {value!r}: ")
    assert remedy in line


@pytest.mark.parametrize("command_line", ["dance", "run --priority 12 -- true", "replay letter"])
def test_process_prints_one_line_without_traceback(bad_files: Path, command_line: str) -> None:
    done = subprocess.run([*COTENANT, *command_line.split()], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_self_outside_a_tenant_prints_one_line_with_its_remedy(node_harness: NodeHarness) -> None:
    node_harness.node()
    done = node_harness.run("self")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"cotenant: COTENANT_SOCKET = '{node_harness.directories.tenant_socket}': ")
    assert "cotenant run" in line


def test_value_that_is_not_utf8_is_rejected(bad_files: Path) -> None:
    for words in ([b"config", b"show", b"--runtime-dir", b"/\xff"], [b"run", b"--name", b"\xff", b"--", b"true"]):
        done = subprocess.run([*COTENANT, *words], capture_output=True, check=False, timeout=60)
        assert done.returncode == 2, done.stderr
        [line] = done.stderr.splitlines()
        assert b"is not UTF-8 text" in line
