"""Do the commands that look say what is there, to people and to programs?"""

import json
import os
import shutil

import pytest

from cotenant.format.config import Config, decode_config
from tests.e2e.stage import BOUND_S, Stage


def test_ps_without_a_node_says_how_to_get_one(stage: Stage) -> None:
    done = stage.run("ps")
    assert done.returncode == 75
    [line] = done.stderr.splitlines()
    assert "start one with: cotenant node" in line


def test_ps_shows_who_is_there_and_all_of_those_who_left(stage: Stage) -> None:
    node = stage.node("--gpu", "v100=16GiB")
    assert "nobody is here" in stage.run("ps").stdout
    stage.tenant("web", "--online", "--slo", "50ms", "--memory", "4GiB", "--share", "30%", "--", "sleep", "600")
    stage.run("run", "--name", "batch", "--", "sh", "-c", "exit 3")
    table = stage.run("ps").stdout
    assert f"1 of 64 slots taken, node pid {node.pid}, 1 GPU" in table
    [row] = [line for line in table.splitlines() if line.startswith("web")]
    for word in ("0/1", "alive", "online", "50ms", "4GiB", "30%", "v100", "sleep 600"):
        assert word in row
    assert "batch" not in table
    everybody = stage.run("ps", "--all").stdout
    [row] = [line for line in everybody.splitlines() if line.startswith("batch")]
    assert "exit 3" in row


def test_ps_for_programs_has_names_and_plain_numbers(stage: Stage) -> None:
    node = stage.node("--gpu", "v100=16GiB")
    tenant = stage.tenant("web", "--online", "--slo", "50ms", "--memory", "4GiB", "--", "sleep", "600")
    stage.run("run", "--name", "batch", "--", "sh", "-c", "exit 3")
    answer = stage.json("ps")
    assert answer["node"]["pid"] == node.pid
    assert answer["gpus"] == ["v100"]
    [web] = answer["tenants"]
    expected = {"name": "web", "slot": 0, "generation": 1, "kind": "online", "slo_ns": 50_000_000, "status": "alive"}
    assert expected.items() <= web.items()
    assert (web["pid"], web["uid"], web["memory_bytes"]) == (tenant.pid, os.getuid(), 4 << 30)
    [batch] = answer["departed"]
    assert (batch["name"], batch["status"], batch["ending"]) == ("batch", "gone", "exit 3")


def test_a_command_with_brackets_and_escapes_is_shown_and_not_obeyed(stage: Stage) -> None:
    stage.node()
    stage.tenant("a", "--", "sh", "-c", "sleep 600; : [/foo] [red] \x1b[2J\x1b]0;title\x07 \N{RIGHT-TO-LEFT OVERRIDE}")
    for words in (["ps"], ["ps", "--all"]):
        done = stage.run(*words)
        assert done.returncode == 0, done.stderr
        assert words[1:] or "[/foo] [red]" in done.stdout  # --all has no room for commands
        assert "\x1b" not in done.stdout
        assert "\x07" not in done.stdout
    assert "\x1b[2J" in stage.json("ps")["tenants"][0]["command"]


def findings(stage: Stage, code: int) -> list[dict[str, str]]:
    done = stage.run("doctor", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    for finding in found:
        assert finding["level"] in {"good", "note", "bad"}
        assert finding["level"] == "good" or finding["remedy"], finding
    shown = stage.run("doctor")
    assert shown.returncode == code
    for finding in found:
        assert finding["what"].split()[0] in shown.stdout
    return found


def levels(found: list[dict[str, str]], word: str) -> list[str]:
    return [finding["level"] for finding in found if word in finding["what"]]


def test_the_doctor_finds_a_good_machine_good(stage: Stage) -> None:
    assert levels(findings(stage, 0), "no node runs") == ["note"]
    stage.node("--gpu", "v100=16GiB")
    stage.tenant("a")
    found = findings(stage, 0)
    assert levels(found, "node pid") == ["good"]
    assert levels(found, "journal") == ["good"]
    assert levels(found, "directory") == ["good", "good"]
    assert levels(found, "C parts") == ["good"]


def test_the_doctor_notes_a_dead_node_and_one_without_a_gpu(stage: Stage) -> None:
    stage.node()
    assert levels(findings(stage, 0), "knows no GPU") == ["note"]
    stage.kill_node()
    assert levels(findings(stage, 0), "a node died and left") == ["note"]


def test_the_doctor_finds_a_damaged_journal_bad_and_notes_what_was_set_aside(stage: Stage) -> None:
    node = stage.node()
    stage.run("run", "--", "true")
    node.terminate()
    node.wait(BOUND_S)
    content = bytearray(stage.places.journal.read_bytes())
    content[len(content) // 2] ^= 0xFF
    stage.places.journal.write_bytes(content)
    assert levels(findings(stage, 1), "damaged at byte") == ["bad"]
    stage.node()
    assert levels(findings(stage, 0), "set aside") == ["note"]


def test_the_doctor_finds_open_and_foreign_directories_bad(stage: Stage) -> None:
    stage.places.runtime.mkdir()
    stage.places.runtime.chmod(0o777)
    assert levels(findings(stage, 1), "is open to everybody") == ["bad"]
    if os.geteuid() == 0:
        os.chown(stage.places.runtime, 12345, -1)
        assert levels(findings(stage, 1), "belongs to user 12345") == ["bad"]
    shutil.rmtree(stage.places.runtime)


def test_the_doctor_finds_a_node_that_talks_nonsense_bad(stage: Stage) -> None:
    import threading

    from cotenant.live.directory import listen

    stage.places.runtime.mkdir(mode=0o700)
    with listen(stage.places.socket, -1) as listener:

        def babble() -> None:
            for _ in range(2):
                with listener.accept()[0] as peer:
                    peer.recv(100)
                    peer.sendall(b"\xff" * 100)

        thread = threading.Thread(target=babble)
        thread.start()
        assert levels(findings(stage, 1), "cannot be asked") == ["bad"]
        thread.join(BOUND_S)


def test_config_show_is_a_config_file_with_its_sources(stage: Stage) -> None:
    file = stage.home / "config.toml"
    file.write_text('[node]\nslots = 8\n\n[[gpu]]\nname = "a"\nmemory = "1GiB"\n')
    shown = stage.run("config", "show", "--grace", "3s").stdout
    assert f"slots = 8  # {file}:2" in shown
    assert 'grace = "3s"  # flag' in shown
    assert 'place = "spread"  # default' in shown
    again = decode_config(shown, "shown")
    assert (again.node.slots, int(again.node.grace), again.gpu[0].name) == (8, 3 * 10**9, "a")
    assert stage.json("config", "show")["node"]["slots"] == 8


def test_config_check_reads_only(stage: Stage) -> None:
    static = stage.run("config", "check", "--limit", "static")
    assert (static.returncode, "run.limit = 'static': there is no share" in static.stderr) == (2, True)
    assert stage.run("config", "check", "--limit", "static", "--share", "5%").returncode == 0
    assert stage.run("run", "--limit", "static", "--", "true").returncode == 2
    done = stage.run("config", "check")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"cotenant: {stage.home / 'config.toml'}: fine\n"
    del stage.environ["COTENANT_CONFIG"]
    none = stage.run("config", "check", env={**stage.environ, "XDG_CONFIG_HOME": str(stage.home / "none")})
    assert none.returncode == 0
    assert decode_config("", "nothing") == Config()


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"], ["node", "--help"]])
def test_help_is_help(stage: Stage, words: list[str]) -> None:
    done = stage.run(*words)
    assert done.returncode == 0
    assert "cotenant" in done.stdout
    assert done.stderr == ""


def test_a_reader_that_has_enough_is_no_error(stage: Stage) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = stage.run("config", "show", stdout=writer)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""
