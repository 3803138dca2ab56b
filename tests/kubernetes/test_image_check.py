"""The check of images: a container runtime runs it, and it refuses an image in which the hook cannot be loaded."""

import ctypes.util
import json
import os
import subprocess
from pathlib import Path

import pytest

from cotenant.cluster.kubernetes.plugin.host_files import needed_glibc
from cotenant.hook.shim import hook_library, image_check

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root directory"),
]
LIBC = next(
    path for path in (Path(f"/lib/{os.uname().machine}-linux-gnu/libc.so.6"), Path("/lib64/libc.so.6")) if path.exists()
)


def check(bundle: Path, needed: str = "GLIBC_2.17", root: str = "rootfs", state: str | None = None) -> str:
    """Return what the check says about the image of a bundle; empty: it may run."""
    config = {"process": {"args": ["root", '"root": {"path": "/"}']}, "root": {"path": root, "readonly": True}}
    (bundle / "config.json").write_text(json.dumps(config))
    given = json.dumps({"ociVersion": "1.0.2", "id": "x", "bundle": str(bundle)}) if state is None else state
    done = subprocess.run([image_check(), needed], input=given, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "rootfs" / "usr").mkdir(parents=True)
    return tmp_path


def add_library(bundle: Path, content: bytes) -> None:
    directory = bundle / "rootfs" / "usr" / "lib64"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "libc.so.6").write_bytes(content)


def test_image_with_this_glibc_may_run(bundle: Path) -> None:
    add_library(bundle, LIBC.read_bytes())
    assert check(bundle, needed_glibc(hook_library())) == ""
    assert check(bundle, root=str(bundle / "rootfs")) == "", "a root directory may be named by its whole path"


def test_image_without_glibc_is_refused_with_a_reason(bundle: Path) -> None:
    assert "has no glibc" in check(bundle)
    add_library(bundle, b"\x7fELF musl libc")
    assert "has no glibc" in check(bundle)


def test_image_with_an_old_glibc_is_refused(bundle: Path) -> None:
    add_library(bundle, b"GLIBC_2.2.5\x00GLIBC_PRIVATE\x00")
    assert "too old" in check(bundle, "GLIBC_2.34")
    add_library(bundle, b"GLIBC_2.34\x00GLIBC_PRIVATE\x00")
    assert check(bundle, "GLIBC_2.34") == ""
    assert "too old" in check(bundle, "GLIBC_2.3"), "the version is compared as a whole"


def test_link_does_not_lead_out_of_the_image(bundle: Path) -> None:
    (bundle / "rootfs" / "lib64").symlink_to(LIBC.parent.resolve())
    assert "has no glibc" in check(bundle), "this directory of the host does not exist in the image"


def test_links_within_the_image_are_followed(bundle: Path) -> None:
    add_library(bundle, LIBC.read_bytes())
    (bundle / "rootfs" / "usr" / "lib64").rename(bundle / "rootfs" / "usr" / "libraries")
    (bundle / "rootfs" / "lib64").symlink_to("/usr/libraries")
    assert check(bundle) == ""


@pytest.mark.parametrize("state", ["", "{}", "[", '{"bundle": 7}', '{"bundle": "/no/such/bundle"}', "x" * 100_000])
def test_unreadable_state_is_refused(bundle: Path, state: str) -> None:
    assert "cannot be found" in check(bundle, state=state)


def test_unreadable_config_is_refused(bundle: Path) -> None:
    assert "cannot be found" in check(bundle, root="nowhere")


def test_needed_version_is_that_of_the_library() -> None:
    assert ctypes.util.find_library("c")
    version = needed_glibc(hook_library())
    assert version.encode() + b"\x00" in hook_library().read_bytes()
