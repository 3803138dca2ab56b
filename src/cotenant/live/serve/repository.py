"""Which models are there, and how do they get loaded? Files, folders of them, and Triton repositories."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.domain.serving import ModelSpec
from cotenant.errors import ConfigError
from cotenant.format.models import ModelConfig, configured, decode_model_config
from cotenant.format.pbtxt import TritonConfig, read_config
from cotenant.format.replay import SUFFIX
from cotenant.live.serve.found import Found
from cotenant.live.serve.model import LoadFailed, Runnable
from cotenant.live.serve.onnx import PLATFORM, OnnxModel, means_batches, tensor_specs
from cotenant.live.serve.python import PLATFORM as PYTHON
from cotenant.live.serve.python import PythonModel, models_in
from cotenant.live.serve.runtime import CpuRuntime, ModelRuntime
from cotenant.live.serve.sessions import Sessions
from cotenant.live.serve.triton import as_in_triton, batch_limit

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
MODELS_LIMIT: Final = 4096
OWN_CONFIG: Final = "cotenant.toml"
_BY_POLICY: Final = "left to the policy: dstack, the default, holds no batch back"


class Repository:
    """All models below the paths that were named."""

    def __init__(self, paths: Sequence[Path], cores: Sequence[int], runtime: ModelRuntime | None = None) -> None:
        """Paths are folders, Triton repositories, files of ONNX, of Python or of replay models."""
        self._paths = paths
        self._cores = cores
        self._runtime = CpuRuntime(cores) if runtime is None else runtime
        self.otherwise: set[str] = set()
        """Models that were loaded by a config of Triton of which not all is done."""

    def scan(self) -> dict[str, Found]:
        """What is there now, by name; of two of one name the first counts."""
        found: dict[str, Found] = {}
        for path in self._paths:
            for one in _below(path):
                found.setdefault(one.name, one)
                if len(found) > MODELS_LIMIT:
                    raise ConfigError("MODELS", str(path), f"has more than {MODELS_LIMIT} models, which is the limit")
        return found

    def load(self, found: Found) -> Runnable:
        """Load a model; takes as long as it takes, so not on the loop's thread."""
        if found.broken:
            raise LoadFailed(found.broken)
        config = _own_config(found.config)
        triton = None if found.triton is None else _triton_config(found.triton)
        if triton is not None and triton.differences:
            self.otherwise.add(found.name)
        elsewhere = self._runtime.load(found, config, triton)
        if elsewhere is not None:
            return elsewhere
        if found.path.suffix == ".py":
            if triton is not None:
                raise LoadFailed("model.py beside a config.pbtxt is of Triton's Python backend, which is not served")
            return self._load_python(found, config)
        return self._load_onnx(found, config, triton)

    def differences(self, found: Found) -> list[str]:
        """What a Triton config asks that is done in another way, or not at all; or why the model cannot be loaded."""
        if found.broken:
            return [found.broken]
        if found.triton is None:
            return []
        try:
            triton = _triton_config(found.triton)
            self.load(found).close()
        except LoadFailed as error:
            return [str(error)]
        said = list(triton.differences)
        if triton.max_batch and not triton.dynamic:
            said.append("dynamic_batching: absent, yet requests that wait are put into one batch")
        if triton.wait_ns:
            said.append(f"dynamic_batching.max_queue_delay_microseconds: {_BY_POLICY}; fifo, triton and fixed do")
        if triton.preferred_batches:
            said.append(
                f"dynamic_batching.preferred_batch_size: {_BY_POLICY}; fifo and triton do, until one is reached"
            )
        return said

    def _load_onnx(self, found: Found, config: ModelConfig, triton: TritonConfig | None) -> Runnable:
        sessions = Sessions(found.path, self._cores)
        try:
            return OnnxModel(self._onnx_spec(found, config, triton, sessions), sessions)
        except LoadFailed:
            sessions.close()
            raise

    def _onnx_spec(
        self, found: Found, config: ModelConfig, triton: TritonConfig | None, sessions: Sessions
    ) -> ModelSpec:
        inputs, outputs = tensor_specs(sessions.takes, sessions.gives)
        meant = means_batches(sessions.takes, sessions.gives)
        max_batch = batch_limit(config, triton, inputs, outputs, meant=meant)
        spec = ModelSpec(found.name, found.version, PLATFORM, inputs, outputs, max_batch)
        if triton is not None:
            spec = as_in_triton(spec, triton)
        return configured(spec, config)

    def _load_python(self, found: Found, config: ModelConfig) -> Runnable:
        models = models_in(found.path)
        if found.name not in models:
            raise LoadFailed(f"{found.path.name} makes no Model of that name, only {', '.join(sorted(models))}")
        model = models[found.name]
        max_batch = model.max_batch if config.max_batch is None else config.max_batch
        if max_batch and not model.max_batch:
            raise LoadFailed(f"a batch of {max_batch} is asked for, the callable says it takes none")
        front = (-1,) if model.max_batch else ()
        sides = [
            tuple(msgspec.structs.replace(one, shape=(*front, *one.shape)) for one in side)
            for side in (model.inputs, model.outputs)
        ]
        decoupled = model.decoupled
        if decoupled and max_batch:
            raise LoadFailed("a decoupled model answers one request at a time: leave max_batch out")
        spec = ModelSpec(found.name, found.version, PYTHON, sides[0], sides[1], max_batch, decoupled=decoupled)
        return PythonModel(configured(spec, config), model)


def _below(path: Path) -> list[Found]:
    if path.is_file():
        return _from_file(path)
    if not path.is_dir():
        raise ConfigError("MODELS", str(path), "is neither a folder nor a file, name one with models")
    found: list[Found] = []
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            found += _from_folder(entry)
        elif entry.suffix in (".onnx", ".py") or entry.name.endswith(SUFFIX):
            found += _from_file(entry)
    return found


def _from_file(path: Path) -> list[Found]:
    if path.suffix == ".onnx":
        return [_checked(Found(path.stem, "1", path, path.with_suffix(".toml")))]
    if path.name.endswith(SUFFIX):
        name = path.name.removesuffix(SUFFIX)
        return [_checked(Found(name, "1", path, path.with_name(f"{name}.toml")))]
    if path.suffix != ".py":
        raise ConfigError("MODELS", str(path), f"is neither .onnx, .py nor {SUFFIX}, nor a folder of such")
    try:
        names = _names_in(path, path.stat().st_mtime_ns)
    except LoadFailed as error:
        return [Found(path.stem, "1", path, path, broken=str(error))]
    return [_checked(Found(name, "1", path, path.with_name(f"{name}.toml"))) for name in names]


@functools.lru_cache(MODELS_LIMIT)
def _names_in(path: Path, mtime_ns: int) -> tuple[str, ...]:
    """To know what a file of Python makes it must be run: once, until it changes."""
    del mtime_ns
    return tuple(models_in(path))


def _from_folder(folder: Path) -> list[Found]:
    versions = sorted((int(one.name), one) for one in folder.iterdir() if one.name.isdigit() and one.is_dir())
    config = folder / "config.pbtxt"
    triton = config if config.is_file() else None
    if not versions:
        if triton is None:
            return []
        return [Found(folder.name, "", folder, folder, broken="it has no folder of a version, as 1/")]
    names = ["model.onnx", "model.py"]
    if triton is not None:
        try:
            asked = _triton_config(triton)
        except LoadFailed as error:
            return [_checked(Found(folder.name, str(versions[-1][0]), folder, folder, broken=str(error)))]
        names = [asked.file] if asked.file else names
        versions = [one for one in versions if not asked.versions or one[0] in asked.versions]
        if not versions:
            broken = f"version_policy of its config.pbtxt names {list(asked.versions)}, none of which is there"
            return [Found(folder.name, "", folder, folder, broken=broken)]
    number, newest = versions[-1]
    for name in names:
        if (newest / name).is_file():
            found = Found(folder.name, str(number), newest / name, folder / OWN_CONFIG, triton)
            return [_checked(found)]
    return [Found(folder.name, str(number), newest, folder, broken=f"{newest.name}/ has no {names[0]}")]


def _checked(found: Found) -> Found:
    if NAME.match(found.name):
        return found
    return found._replace(broken="its name has other characters than letters, digits, dot, underscore and hyphen")


def _own_config(path: Path) -> ModelConfig:
    try:
        return decode_model_config(path.read_text(encoding="utf-8"), path.name)
    except FileNotFoundError:
        return ModelConfig()
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise LoadFailed(str(error)) from None


def _triton_config(path: Path) -> TritonConfig:
    try:
        return read_config(path.read_text(encoding="utf-8"), path.name)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise LoadFailed(str(error)) from None
