"""Container images made from files of this machine, packed as docker archives that containerd imports."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import marshal
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cotenant_lab.errors import RunFailedError

PAUSE_IMAGE: Final = "cotenant.test/pause:1"
PYTHON_IMAGE: Final = "cotenant.test/python:1"

PACKAGES_DIRECTORY: Final = "/opt/packages"
"""Where the Python image keeps packages; its PYTHONPATH."""

ENVIRONMENT: Final = (
    f"PATH=/usr/local/bin:/usr/bin:/bin:{PACKAGES_DIRECTORY}/bin",
    f"PYTHONPATH={PACKAGES_DIRECTORY}",
    "PYTHONUNBUFFERED=1",
    "LANG=C.UTF-8",
)
"""The variables of images with Python."""

_COMMANDS: Final = (
    *("sh", "cat", "chmod", "cp", "date", "dd", "df", "echo", "env", "false", "head", "hostname", "id", "kill", "ln"),
    *("ls", "mkdir", "mount", "mv", "printf", "ps", "pwd", "readlink", "rm", "seq", "sleep", "sort", "stat", "tail"),
    *("tee", "test", "touch", "tr", "true", "uname", "wc", "grep", "sed", "ldd"),
)
_STDLIB_LEFT_OUT: Final = {"site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo"}
_COMPILED: Final = "__pycache__"
_UNCHECKED_HASH: Final = 1
"""The flag of a compiled file that contains a hash of its source, without the flag that it must be checked."""
_USERS: Final = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n"
_GROUPS: Final = "root:x:0:\nnogroup:x:65534:\n"


class Layer:
    """The files of one layer; all belong to root and have no time, so that the same files give the same layer.

    Python files are compiled, in the form that Python uses without comparing times: a container with a read-only root
    file system could not keep what it compiles, and would compile all of it at every start.
    """

    def __init__(self) -> None:
        self._files: dict[str, Path] = {}
        self._made: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def add_file(self, source: Path, target: str) -> None:
        """Add a file; a symbolic link becomes the file that it names."""
        self._files[_inside(target)] = source.resolve()

    def add_tree(self, source: Path, target: str, left_out: frozenset[str] = frozenset()) -> None:
        """Add all files below a directory, without the folders of these names."""
        for path, folders, files in os.walk(source):
            folders[:] = sorted(folder for folder in folders if folder not in {*left_out, _COMPILED})
            for name in sorted(files):
                file = Path(path) / name
                if file.is_file() and file.suffix not in {".a", ".pth"}:
                    self.add_file(file, f"{target}/{file.relative_to(source)}")

    def add_text(self, target: str, text: str, mode: int = 0o644) -> None:
        """Add a file with this content."""
        content = text.encode()
        self._add_made(target, tarfile.REGTYPE, mode, content)

    def add_link(self, target: str, destination: str) -> None:
        """Add a symbolic link."""
        self._add_made(target, tarfile.SYMTYPE, 0o777, b"", destination)

    def add_directory(self, target: str, mode: int = 0o755) -> None:
        """Add an empty directory, or set the mode of one."""
        self._add_made(target, tarfile.DIRTYPE, mode, b"")

    def key(self) -> str:
        """Return a digest of the names, sizes and times of all files."""
        digest = hashlib.sha256(repr([(name, made[1]) for name, made in sorted(self._made.items())]).encode())
        for name, file in sorted(self._files.items()):
            status = file.stat()
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]

    def write(self, archive: Path) -> Path:
        """Write the layer as a tar file."""
        made = dict(self._made)
        for name, file in self._files.items():
            if name.endswith(".py") and (compiled := _compiled(name, file)):
                path = PurePosixPath(name)
                target = f"{path.parent}/{_COMPILED}/{path.stem}.{sys.implementation.cache_tag}.pyc"
                made[target] = (_file_entry(target, compiled), compiled)
        for name in (*self._files, *list(made)):
            for parent in PurePosixPath(name).parents:
                if str(parent) != "." and str(parent) not in made:
                    made[str(parent)] = (_entry(str(parent), tarfile.DIRTYPE, 0o755), b"")
        with tarfile.open(archive, "w") as tar:
            for name in sorted({*made, *self._files}):
                if name in made:
                    info, content = made[name]
                    tar.addfile(info, io.BytesIO(content))
                else:
                    _add_from_disk(tar, name, self._files[name])
        return archive

    def sources(self) -> list[Path]:
        """Return the files of this machine that the layer contains."""
        return list(self._files.values())

    def _add_made(self, target: str, kind: bytes, mode: int, content: bytes, destination: str = "") -> None:
        info = _entry(_inside(target), kind, mode)
        info.size, info.linkname = len(content), destination
        self._made[info.name] = (info, content)


class ImageEntry(NamedTuple):
    """An image of an archive; `config` has docker's fields, such as Entrypoint, Cmd, Env, User and WorkingDir."""

    names: Sequence[str]
    layers: Sequence[Path]
    config: Mapping[str, Any]


def write_images(archive: Path, images: Sequence[ImageEntry]) -> Path:
    """Write a docker archive with several images, which contains each layer once."""
    paths = list(dict.fromkeys(layer for image in images for layer in image.layers))
    digests = {layer: _digest(layer) for layer in paths}
    entries = {layer: f"{index}/layer.tar" for index, layer in enumerate(paths)}
    texts: dict[str, bytes] = {}
    manifest = []
    for image in images:
        description = {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "config": dict(image.config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digests[layer]}" for layer in image.layers]},
            "history": [{"created_by": "cotenant-lab"} for _ in image.layers],
        }
        text = json.dumps(description).encode()
        config_name = f"{hashlib.sha256(text).hexdigest()}.json"
        texts[config_name] = text
        layers = [entries[layer] for layer in image.layers]
        manifest.append({"Config": config_name, "RepoTags": list(image.names), "Layers": layers})
    texts["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(archive, "w") as tar:
        for name, content in texts.items():
            tar.addfile(_file_entry(name, content), io.BytesIO(content))
        for layer, name in entries.items():
            _add_from_disk(tar, name, layer)
    return archive


def write_image(archive: Path, name: str, layers: Sequence[Path], config: Mapping[str, Any]) -> Path:
    """Write a docker archive with one image."""
    return write_images(archive, [ImageEntry([name], layers, config)])


def pause_image(directory: Path, program: Path) -> Path:
    """Write the image of the first process of every pod."""
    layer = Layer()
    layer.add_file(program, "/pause")
    tar = layer.write(directory / "pause-layer.tar")
    return write_image(directory / "pause.tar", PAUSE_IMAGE, [tar], {"Entrypoint": ["/pause"]})


def python_image(
    directory: Path,
    cache: Path,
    *,
    name: str = PYTHON_IMAGE,
    distributions: Sequence[str] = (),
    files: Mapping[str, Path] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write an image with a shell, this machine's Python and some of its installed packages.

    `distributions` are names as pip knows them, without their dependencies; `files` are further files or directories by
    their path in the image.
    """
    layer = Layer()
    for distribution in distributions:
        add_distribution(layer, distribution)
    for target, source in (files or {}).items():
        if source.is_dir():
            layer.add_tree(source, target, frozenset({"__pycache__"}))
        else:
            layer.add_file(source, target)
    add_libraries(layer, [file for file in layer.sources() if ".so" in file.name])
    layer.add_directory(PACKAGES_DIRECTORY)
    stem = re.sub(r"\W+", "-", name)
    tar = layer.write(directory / f"{stem}-layer.tar")
    image_config = {"Cmd": ["python3"], "Env": list(ENVIRONMENT), "WorkingDir": "/tmp", **(config or {})}  # noqa: S108
    base = python_base(cache)
    return write_image(directory / f"{stem}.tar", name, [base, tar], image_config)


def distribution_closure(names: Sequence[str]) -> list[str]:
    """Return these installed distributions and all that they need; a name may have extras, as in cotenant[serve]."""
    found: dict[str, set[str]] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras | {""}
        if name in found and extras <= found[name]:
            continue
        extras |= found.get(name, set())
        found[name] = extras
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return list(found)


def python_base(cache: Path) -> Path:
    """Return the layer with a shell, some commands and Python, to which images add their own layers."""
    return cached_layer(_python_layer(), cache, "python-compiled")


def cached_layer(layer: Layer, cache: Path, prefix: str) -> Path:
    """Return the archive of a layer, which is written if the cache does not have it."""
    folder = cache / "layers"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{prefix}-{layer.key()}.tar"
    if not archive.exists():
        partial = layer.write(folder / f".{archive.name}.{os.getpid()}")
        partial.rename(archive)
    return archive


def _python_layer() -> Layer:
    """Return a layer with a shell, some commands, and the Python that runs this program."""
    layer = Layer()
    programs = [Path(found) for command in _COMMANDS if (found := shutil.which(command, path="/usr/bin:/bin"))]
    for program in programs:
        layer.add_file(program, f"/bin/{program.name}")
    interpreter = Path(sys.executable).resolve()
    layer.add_file(interpreter, str(interpreter))
    for link in ("/usr/local/bin/python3", "/usr/local/bin/python"):
        layer.add_link(link, str(interpreter))
    stdlib = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    layer.add_tree(stdlib, str(stdlib), frozenset(_STDLIB_LEFT_OUT))
    extensions = [file for file in layer.sources() if ".so" in file.name]
    add_libraries(layer, [*programs, interpreter, *extensions])
    layer.add_text("/etc/passwd", _USERS)
    layer.add_text("/etc/group", _GROUPS)
    layer.add_directory("/tmp", 0o1777)  # noqa: S108 - of the image
    for empty in ("/root", "/proc", "/sys", "/dev", "/run", "/var/run"):
        layer.add_directory(empty)
    return layer


def add_libraries(layer: Layer, programs: Sequence[Path]) -> None:
    """Add the shared libraries that these programs and libraries need, at the paths where the loader finds them."""
    if not programs:
        return
    done = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, check=False
    )  # it fails for a static program, of which it prints nothing
    bundled = set(layer.sources())  # some packages bring libraries, and find them relative to themselves
    for path in sorted(set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE))):
        if Path(path).resolve() not in bundled:
            layer.add_file(Path(path), os.path.normpath(path))


def add_distribution(layer: Layer, name: str) -> None:
    """Add an installed distribution; one that is installed in place is taken from its source directory as well."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise RunFailedError(f"the distribution {name!r} is not installed, and cannot be put into an image") from None
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        if (
            ".." not in file.parts
            and source.is_file()
            and file.suffix != ".pth"
            and not file.name.startswith("_editable")
        ):
            layer.add_file(source, f"{PACKAGES_DIRECTORY}/{file}")
    if (distribution.read_text("direct_url.json") or "").find('"editable": true') >= 0:
        for package in _editable_packages(name):
            layer.add_tree(package, f"{PACKAGES_DIRECTORY}/{package.name}", frozenset({"__pycache__"}))
    for entry in distribution.entry_points.select(group="console_scripts"):
        script = (
            f"#!/usr/local/bin/python3\nfrom {entry.module} import {entry.attr}\nraise SystemExit({entry.attr}())\n"
        )
        layer.add_text(f"{PACKAGES_DIRECTORY}/bin/{entry.name}", script, 0o755)


def _editable_packages(distribution: str) -> Iterator[Path]:
    module = importlib.import_module(distribution.replace("-", "_"))
    for path in module.__path__:
        if (Path(path) / "__init__.py").exists():
            yield Path(path)


def _inside(target: str) -> str:
    return str(PurePosixPath(target)).lstrip("/")


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    return info


def _file_entry(name: str, content: bytes) -> tarfile.TarInfo:
    info = _entry(name, tarfile.REGTYPE, 0o644)
    info.size = len(content)
    return info


def _compiled(name: str, file: Path) -> bytes:
    """Return a Python file as compiled code whose header has a hash that Python does not check; empty: not Python."""
    source = file.read_bytes()
    try:
        code = compile(source, f"/{name}", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # a template, or an example of an error
        return b""
    flags = _UNCHECKED_HASH.to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source) + marshal.dumps(code)


def _add_from_disk(tar: tarfile.TarFile, name: str, file: Path) -> None:
    status = file.stat()
    info = _entry(name, tarfile.REGTYPE, 0o755 if status.st_mode & 0o111 else 0o644)
    info.size = status.st_size
    with file.open("rb") as content:
        tar.addfile(info, content)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
