"""Directories follow XDG, root or the config, and belong to the user alone."""

import os
import socket
import stat
from pathlib import Path

import pytest

from cotenant.errors import ConfigError, WorldError
from cotenant.node.config.file import Config, DirectoriesConfig
from cotenant.node.directories import (
    Directories,
    config_file,
    listen,
    load_config,
    lock_holder,
    make_directory,
    own_directories,
    resolve_directories,
    restrict_directory,
    take_lock,
)

pytestmark = pytest.mark.live

NOTHING = DirectoriesConfig()
USER = 1234
ROOT = 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "environ, uid, runtime, state",
    [
        ({}, ROOT, "/run/cotenant", "/var/lib/cotenant"),
        ({"XDG_RUNTIME_DIR": "/run/user/0"}, ROOT, "/run/cotenant", "/var/lib/cotenant"),
        ({"HOME": "/home/a"}, USER, "/tmp/cotenant-1234", "/home/a/.local/state/cotenant"),
        ({"HOME": "/home/a", "XDG_RUNTIME_DIR": ""}, USER, "/tmp/cotenant-1234", "/home/a/.local/state/cotenant"),
        (
            {"HOME": "/home/a", "XDG_RUNTIME_DIR": "/run/user/1234", "XDG_STATE_HOME": "/s"},
            USER,
            "/run/user/1234/cotenant",
            "/s/cotenant",
        ),
        ({"COTENANT_DIRECTORY": "/d", "XDG_RUNTIME_DIR": "/run/user/1234"}, USER, "/d/run", "/d/state"),
        ({"COTENANT_DIRECTORY": "/d"}, ROOT, "/d/run", "/d/state"),
    ],
)
def test_directories_follow_the_environment(environ: dict[str, str], uid: int, runtime: str, state: str) -> None:
    assert resolve_directories(NOTHING, environ, uid) == Directories(Path(runtime), Path(state))


def test_config_overrides_each_field() -> None:
    environ = {"COTENANT_DIRECTORY": "/d"}
    assert resolve_directories(DirectoriesConfig(runtime="/r"), environ, USER) == Directories(
        Path("/r"), Path("/d/state")
    )
    assert resolve_directories(DirectoriesConfig(state="/s"), environ, USER) == Directories(Path("/d/run"), Path("/s"))


def test_relative_directories_are_made_absolute() -> None:
    directories = resolve_directories(DirectoriesConfig(runtime="r"), {"COTENANT_DIRECTORY": "d"}, USER)
    assert directories == Directories(Path.cwd() / "r", Path.cwd() / "d/state")


@pytest.mark.parametrize("name", ["x" * 200, "ü" * 60], ids=["ascii", "bytes count, not letters"])
def test_path_too_long_for_a_socket_raises_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="is too long for a socket, choose a directory of at most 93 bytes"):
        resolve_directories(DirectoriesConfig(runtime=f"/{name}"), {}, USER)


def test_longest_permitted_path_can_be_bound(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = Path("/tmp") / f"ct-{os.getpid()}-"
    runtime = Path(str(base) + "x" * (93 - len(str(base))))
    runtime.mkdir()
    try:
        listen(resolve_directories(DirectoriesConfig(runtime=str(runtime)), {}, USER).operator_socket, 0o600).close()
    finally:
        (runtime / "operator.sock").unlink(missing_ok=True)
        runtime.rmdir()


@pytest.mark.parametrize(
    "environ, uid, given, expected",
    [
        ({}, ROOT, "", ("/etc/cotenant/config.toml", False)),
        ({"HOME": "/home/a"}, USER, "", ("/home/a/.config/cotenant/config.toml", False)),
        ({"XDG_CONFIG_HOME": "/c"}, USER, "", ("/c/cotenant/config.toml", False)),
        ({"COTENANT_CONFIG": "/e.toml"}, ROOT, "", ("/e.toml", True)),
        ({"COTENANT_CONFIG": "/e.toml"}, USER, "/f.toml", ("/f.toml", True)),
    ],
)
def test_config_file_follows_the_environment(
    environ: dict[str, str], uid: int, given: str, expected: tuple[str, bool]
) -> None:
    path, required = config_file(environ, uid, given)
    assert (str(path), required) == expected


def test_default_config_file_may_be_missing(tmp_path: Path) -> None:
    assert load_config(tmp_path / "none.toml", required=False) == Config()
    with pytest.raises(ConfigError, match="there is no such file"):
        load_config(tmp_path / "none.toml", required=True)


@pytest.mark.parametrize("required", [True, False])
def test_unreadable_config_is_always_an_error(tmp_path: Path, required: bool) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    for path in (tmp_path, tmp_path / "latin.toml"):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_config(path, required=required)


def test_directory_is_created_private_with_its_parents(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b", "directories.runtime")
    assert mode(tmp_path / "a" / "b") == 0o700
    (tmp_path / "a" / "b").chmod(0o755)
    restrict_directory(tmp_path / "a" / "b", "directories.runtime")
    assert mode(tmp_path / "a" / "b") == 0o700


def test_mode_of_a_directory_is_set(tmp_path: Path) -> None:
    make_directory(tmp_path / "a", "directories.runtime")
    restrict_directory(tmp_path / "a", "directories.runtime", 0o755)
    assert mode(tmp_path / "a") == 0o755


def test_mode_and_group_of_a_socket_are_set(tmp_path: Path) -> None:
    listen(tmp_path / "s", 0o660, os.getegid()).close()
    assert mode(tmp_path / "s") == 0o660
    assert (tmp_path / "s").stat().st_gid == os.getegid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_own_files_are_not_put_into_the_directories_of_another_users_node(tmp_path: Path) -> None:
    theirs = Directories(tmp_path / "run", tmp_path / "state")
    environ = {"COTENANT_DIRECTORY": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/7", "HOME": "/home/u"}
    assert own_directories(theirs, environ, USER) == theirs, "they do not exist yet"
    theirs.runtime.mkdir()
    mine = Directories(Path("/run/user/7/cotenant"), Path("/home/u/.local/state/cotenant"))
    assert own_directories(theirs, environ, USER) == mine
    os.chown(theirs.runtime, USER, -1)
    assert own_directories(theirs, environ, USER) == theirs


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o755)
    os.chown(tmp_path / "theirs", USER, -1)
    with pytest.raises(ConfigError, match=f"belongs to user {USER}; choose a directory of your own"):
        make_directory(tmp_path / "theirs", "directories.runtime")
    assert mode(tmp_path / "theirs") == 0o755, "what is not ours stays as it was"


def test_file_instead_of_a_directory_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="cannot be used"):
            make_directory(path, "directories.state")


def test_directory_lock_admits_one_node(tmp_path: Path) -> None:
    first = take_lock(tmp_path / "node.lock")
    assert mode(tmp_path / "node.lock") == 0o600
    with pytest.raises(WorldError, match=rf"a node already runs on .*\(pid {os.getpid()}\)"):
        take_lock(tmp_path / "node.lock")
    assert lock_holder(tmp_path / "node.lock") == os.getpid()
    os.close(first)
    os.close(take_lock(tmp_path / "node.lock"))


@pytest.mark.parametrize("content", [b"", b"x", b"\xff", b"4194999", b"9" * 5000])
def test_free_lock_has_no_holder(tmp_path: Path, content: bytes) -> None:
    assert lock_holder(tmp_path / "none") is None
    (tmp_path / "node.lock").write_bytes(content)
    assert lock_holder(tmp_path / "node.lock") is None


def test_mode_of_a_socket_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "tenant.sock"
    for umask in (0, 0o077):
        before = os.umask(umask)
        try:
            listen(path, 0o666).close()
        finally:
            assert os.umask(before) == umask, "the umask is as it was"
        assert mode(path) == 0o666


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    listen(path, 0o600).close()
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(path))
    with listen(path, 0o600), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_world_writable_directory_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(ConfigError, match="is writable by everyone"):
        make_directory(shared, "directories.runtime")
    assert shared.stat().st_mode & 0o7777 == 0o1777


def test_directory_in_tmp_of_another_user_is_refused() -> None:
    uid = 3_000_000_000 + os.getpid()
    squatted = Path(f"/tmp/cotenant-{uid}")
    squatted.mkdir()
    try:
        with pytest.raises(ConfigError, match="not a directory of yours"):
            resolve_directories(DirectoriesConfig(), {"HOME": "/nowhere"}, uid)
    finally:
        squatted.rmdir()
