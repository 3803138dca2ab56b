"""Tests of the commands that show the state of a node."""

import json
import os
import shutil

import pytest

from cotenant.node.config.file import Config, decode_config
from tests.support.node_processes import BOUND_S, NodeHarness

pytestmark = pytest.mark.live


def test_ps_without_a_node_prints_how_to_start_one(node_harness: NodeHarness) -> None:
    done = node_harness.run("ps")
    assert done.returncode == 75
    [line] = done.stderr.splitlines()
    assert "start one with: cotenant node" in line


def test_ps_lists_present_tenants_and_with_all_also_departed_ones(node_harness: NodeHarness) -> None:
    node = node_harness.node("--gpu", "v100=16GiB")
    assert "no tenants; start one" in node_harness.run("ps").stdout
    node_harness.tenant("web", "--online", "--slo", "50ms", "--memory", "4GiB", "--share", "30%", "--", "sleep", "600")
    node_harness.run("run", "--name", "batch", "--", "sh", "-c", "exit 3")
    table = node_harness.run("ps").stdout
    assert f"1 of 64 slots taken, node pid {node.pid}, 1 GPU" in table
    [row] = [line for line in table.splitlines() if line.startswith("web")]
    for word in ("0/1", "alive", "online", "50ms", "4GiB", "30%", "v100", "sleep 600"):
        assert word in row
    assert "batch" not in table
    with_departed = node_harness.run("ps", "--all").stdout
    [row] = [line for line in with_departed.splitlines() if line.startswith("batch")]
    assert "exit 3" in row


def test_ps_json_has_field_names_and_plain_numbers(node_harness: NodeHarness) -> None:
    node = node_harness.node("--gpu", "v100=16GiB")
    tenant = node_harness.tenant("web", "--online", "--slo", "50ms", "--memory", "4GiB", "--", "sleep", "600")
    node_harness.run("run", "--name", "batch", "--", "sh", "-c", "exit 3")
    answer = node_harness.json("ps")
    assert answer["node"]["pid"] == node.pid
    assert answer["gpus"] == ["v100"]
    [web] = answer["tenants"]
    expected = {"name": "web", "slot": 0, "generation": 1, "kind": "online", "slo_ns": 50_000_000, "status": "alive"}
    assert expected.items() <= web.items()
    assert (web["pid"], web["uid"], web["memory_bytes"]) == (tenant.pid, os.getuid(), 4 << 30)
    [batch] = answer["departed"]
    assert (batch["name"], batch["status"], batch["ending"]) == ("batch", "gone", "exit 3")


def test_markup_and_escapes_in_a_command_are_printed_as_text(node_harness: NodeHarness) -> None:
    node_harness.node()
    node_harness.tenant(
        "a", "--", "sh", "-c", "sleep 600; : [/foo] [red] \x1b[2J\x1b]0;title\x07 \N{RIGHT-TO-LEFT OVERRIDE}"
    )
    for words in (["ps"], ["ps", "--all"]):
        done = node_harness.run(*words)
        assert done.returncode == 0, done.stderr
        assert words[1:] or "[/foo] [red]" in done.stdout  # --all has no column for commands
        assert "\x1b" not in done.stdout
        assert "\x07" not in done.stdout
    assert "\x1b[2J" in node_harness.json("ps")["tenants"][0]["command"]


def findings(node_harness: NodeHarness, code: int) -> list[dict[str, str]]:
    done = node_harness.run("doctor", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    all_findings: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    for finding in all_findings:
        assert finding["level"] in {"good", "note", "bad"}
        assert finding["level"] == "good" or finding["remedy"], finding
    shown = node_harness.run("doctor")
    assert shown.returncode == code
    for finding in all_findings:
        assert finding["what"].split()[0] in shown.stdout
    return all_findings


def levels(all_findings: list[dict[str, str]], word: str) -> list[str]:
    return [finding["level"] for finding in all_findings if word in finding["what"]]


def test_doctor_reports_no_problem_on_a_working_machine(node_harness: NodeHarness) -> None:
    assert levels(findings(node_harness, 0), "no node runs") == ["note"]
    node_harness.node("--gpu", "v100=16GiB")
    node_harness.tenant("a")
    all_findings = findings(node_harness, 0)
    assert levels(all_findings, "node pid") == ["good"]
    assert levels(all_findings, "journal") == ["good"]
    assert levels(all_findings, "directory") == ["good", "good"]
    assert levels(all_findings, "C extension") == ["good"]


def test_doctor_notes_a_dead_node_and_a_node_without_a_gpu(node_harness: NodeHarness) -> None:
    node_harness.node()
    assert levels(findings(node_harness, 0), "has no GPU") == ["note"]
    node_harness.kill_node()
    assert levels(findings(node_harness, 0), "a node died and left") == ["note"]


def test_doctor_reports_a_damaged_journal_and_notes_the_renamed_one(node_harness: NodeHarness) -> None:
    node = node_harness.node()
    node_harness.run("run", "--", "true")
    node.terminate()
    node.wait(BOUND_S)
    content = bytearray(node_harness.directories.journal.read_bytes())
    content[len(content) // 2] ^= 0xFF
    node_harness.directories.journal.write_bytes(content)
    assert levels(findings(node_harness, 1), "damaged at byte") == ["bad"]
    node_harness.node()
    assert levels(findings(node_harness, 0), "was renamed") == ["note"]


def test_doctor_rejects_world_accessible_and_foreign_directories(node_harness: NodeHarness) -> None:
    node_harness.directories.runtime.mkdir()
    node_harness.directories.runtime.chmod(0o777)
    assert levels(findings(node_harness, 1), "is writable by other users") == ["bad"]
    node_harness.directories.runtime.chmod(0o755)
    node_harness.directories.state.mkdir()
    node_harness.directories.state.chmod(0o705)
    assert levels(findings(node_harness, 1), "is accessible to other users") == ["bad"]
    if os.geteuid() == 0:
        os.chown(node_harness.directories.runtime, 12345, -1)
        assert levels(findings(node_harness, 1), "belongs to user 12345") == ["bad"]
    shutil.rmtree(node_harness.directories.runtime)


def test_doctor_reports_a_node_with_invalid_responses(node_harness: NodeHarness) -> None:
    import threading

    from cotenant.node.directories import listen

    node_harness.directories.runtime.mkdir(mode=0o700)
    with listen(node_harness.directories.tenant_socket, 0o600) as listener:

        def send_garbage() -> None:
            for _ in range(2):
                with listener.accept()[0] as peer:
                    peer.recv(100)
                    peer.sendall(b"\xff" * 100)

        thread = threading.Thread(target=send_garbage)
        thread.start()
        assert levels(findings(node_harness, 1), "does not respond") == ["bad"]
        thread.join(BOUND_S)


def test_config_show_prints_a_valid_config_file_with_sources(node_harness: NodeHarness) -> None:
    file = node_harness.home / "config.toml"
    file.write_text('[node]\nslots = 8\n\n[[gpu]]\nname = "a"\nmemory = "1GiB"\n')
    shown = node_harness.run("config", "show", "--reconnect-grace", "3s").stdout
    assert f"slots = 8  # {file}:2" in shown
    assert 'grace = "3s"  # flag' in shown
    assert 'place = "spread"  # default' in shown
    decoded = decode_config(shown, "shown")
    assert (decoded.node.slots, int(decoded.node.grace), decoded.gpu[0].name) == (8, 3 * 10**9, "a")
    assert node_harness.json("config", "show")["node"]["slots"] == 8


def test_config_check_validates_without_starting_anything(node_harness: NodeHarness) -> None:
    static = node_harness.run("config", "check", "--limit", "static")
    assert (static.returncode, "run.limit = 'static': a static limit needs a share" in static.stderr) == (2, True)
    assert node_harness.run("config", "check", "--limit", "static", "--share", "5%").returncode == 0
    assert node_harness.run("run", "--limit", "static", "--", "true").returncode == 2
    done = node_harness.run("config", "check")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"cotenant: {node_harness.home / 'config.toml'}: valid\n"
    del node_harness.environ["COTENANT_CONFIG"]
    without_file = node_harness.run(
        "config", "check", env={**node_harness.environ, "XDG_CONFIG_HOME": str(node_harness.home / "none")}
    )
    assert without_file.returncode == 0
    assert decode_config("", "nothing") == Config()


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"], ["node", "--help"]])
def test_help_and_version_print_to_standard_output(node_harness: NodeHarness, words: list[str]) -> None:
    done = node_harness.run(*words)
    assert done.returncode == 0
    assert "cotenant" in done.stdout
    assert done.stderr == ""


def test_closed_output_pipe_exits_without_a_message(node_harness: NodeHarness) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = node_harness.run("config", "show", stdout=writer)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""
