"""Images packed from local files: contents, owners, determinism, and the archive that containerd imports."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes.images import (
    ImageEntry,
    Layer,
    distribution_closure,
    python_image,
    write_image,
    write_images,
)


def sample(directory: Path) -> Layer:
    (directory / "tree" / "__pycache__").mkdir(parents=True)
    (directory / "tree" / "program").write_text("#!/bin/sh\n")
    (directory / "tree" / "program").chmod(0o700)
    (directory / "tree" / "__pycache__" / "x.pyc").write_text("")
    (directory / "tree" / "link").symlink_to("program")
    layer = Layer()
    layer.add_tree(directory / "tree", "/app", frozenset({"__pycache__"}))
    layer.add_text("/etc/name", "value\n")
    layer.add_link("/bin/program", "/app/program")
    layer.add_directory("/tmp", 0o1777)
    return layer


def test_layer_contains_the_files_readable_by_every_user(tmp_path: Path) -> None:
    with tarfile.open(sample(tmp_path).write(tmp_path / "layer.tar")) as tar:
        found = {info.name: info for info in tar.getmembers()}
        assert set(found) == {"app", "app/program", "app/link", "etc", "etc/name", "bin", "bin/program", "tmp"}
        assert {(info.uid, info.mtime) for info in found.values()} == {(0, 0)}
        assert [oct(found[name].mode) for name in ("app", "app/program", "etc/name", "tmp")] == [
            *("0o755", "0o755", "0o644", "0o1777")
        ]
        assert found["app/link"].isfile()  # a link may name a file that the image does not have
        assert found["bin/program"].linkname == "/app/program"
        names = list(found)
        assert names.index("app") < names.index("app/program")


def test_same_files_give_the_same_layer(tmp_path: Path) -> None:
    layer = sample(tmp_path)
    first, second = (layer.write(tmp_path / name).read_bytes() for name in ("a.tar", "b.tar"))
    assert first == second
    key = layer.key()
    layer.add_text("/etc/name", "another\n")
    assert layer.key() != key


def test_archive_names_image_config_and_layers(tmp_path: Path) -> None:
    tar_file = sample(tmp_path).write(tmp_path / "layer.tar")
    archive = write_image(tmp_path / "image.tar", "example.test/app:2", [tar_file], {"Entrypoint": ["/app/program"]})
    with tarfile.open(archive) as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        [manifest] = json.loads(read("manifest.json"))
        config = json.loads(read(manifest["Config"]))
        assert manifest["RepoTags"] == ["example.test/app:2"]
        assert config["config"] == {"Entrypoint": ["/app/program"]}
        digests = [f"sha256:{hashlib.sha256(read(layer)).hexdigest()}" for layer in manifest["Layers"]]
        assert config["rootfs"]["diff_ids"] == digests


def test_archive_of_several_images_contains_each_layer_once(tmp_path: Path) -> None:
    base = sample(tmp_path).write(tmp_path / "base.tar")
    other = Layer()
    other.add_text("/etc/other", "value\n")
    more = other.write(tmp_path / "more.tar")
    images = [ImageEntry(["a:1", "a:2"], [base], {}), ImageEntry(["b:1"], [base, more], {"User": "1"})]
    with tarfile.open(write_images(tmp_path / "images.tar", images)) as tar:
        names = tar.getnames()
        file = tar.extractfile("manifest.json")
        assert file is not None
        first, second = json.loads(file.read())
    assert (first["RepoTags"], second["RepoTags"]) == (["a:1", "a:2"], ["b:1"])
    assert first["Layers"] == second["Layers"][:1]
    assert sum(name.endswith("layer.tar") for name in names) == 2


def test_python_files_are_compiled_and_used_whatever_the_times_say(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "answer.py").write_text("value = 42\n")
    (tmp_path / "tree" / "broken.py").write_text("value = {{ template }}}\n")
    layer = Layer()
    layer.add_tree(tmp_path / "tree", "/app")
    root = tmp_path / "root"
    with tarfile.open(layer.write(tmp_path / "layer.tar")) as tar:
        tar.extractall(root, filter="data")
    [compiled] = (root / "app" / "__pycache__").iterdir()
    assert compiled.name.startswith("answer.")
    (root / "app" / "answer.py").write_text("value = 43\n")
    command = [sys.executable, "-c", "import answer; print(answer.value)"]
    done = subprocess.run(command, cwd=root / "app", capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"


def test_closure_contains_the_dependencies_of_named_extras() -> None:
    found = distribution_closure(["cotenant[kubernetes]"])
    assert {"cotenant", "msgspec", "grpcio", "protobuf", "pyyaml", "cryptography", "cffi"} <= set(found)
    assert not {"pytest", "onnxruntime"} & set(found)


def test_closure_contains_dependencies_without_extras() -> None:
    found = distribution_closure(["cotenant"])
    assert found[0] == "cotenant"
    assert {"msgspec", "numpy"} <= set(found)
    assert not {"pytest", "onnxruntime"} & set(found)


def test_missing_distribution_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="'no-such-thing' is not installed"):
        python_image(tmp_path, tmp_path, distributions=["no-such-thing"])
