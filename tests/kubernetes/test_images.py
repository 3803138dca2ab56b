"""Images packed from local files: contents, owners, determinism, and the archive that containerd imports."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from cotenant_lab.errors import RunFailedError
from cotenant_lab.kubernetes.images import Layer, distribution_closure, python_image, write_image


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


def test_closure_contains_dependencies_without_extras() -> None:
    found = distribution_closure(["cotenant"])
    assert found[0] == "cotenant"
    assert {"msgspec", "numpy"} <= set(found)
    assert not {"pytest", "onnxruntime"} & set(found)


def test_missing_distribution_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="'no-such-thing' is not installed"):
        python_image(tmp_path, tmp_path, distributions=["no-such-thing"])
