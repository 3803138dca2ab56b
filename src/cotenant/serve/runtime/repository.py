"""Discovery and loading of models: files, directories and Triton repositories."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.serve.model.event import ModelSpec
from cotenant.serve.model_config_format import ModelConfig, decode_model_config, with_config
from cotenant.serve.protocol.triton.pbtxt import TritonConfig, read_config
from cotenant.serve.replay_model_format import SUFFIX
from cotenant.serve.runtime.model import LoadedModel, ModelLoadError, ModelSource, read_file, regular_size
from cotenant.serve.runtime.onnx import PLATFORM, OnnxModel, means_batches, tensor_specs
from cotenant.serve.runtime.onnx_files import external_files
from cotenant.serve.runtime.onnx_sessions import OnnxSessions
from cotenant.serve.runtime.python import PLATFORM as PYTHON
from cotenant.serve.runtime.python import PythonModel, model_names, models_in
from cotenant.serve.runtime.runtime import CpuRuntime, ModelRuntime
from cotenant.serve.runtime.triton_config import batch_limit, with_triton_config

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
MODELS_LIMIT: Final = 4096
OWN_CONFIG: Final = "cotenant.toml"
_NOT_EXECUTED: Final = "the names of its models are known when it is loaded, because they are not literals"
_executed_names: Final[dict[Path, tuple[int, tuple[str, ...] | None]]] = {}
"""The models of Python files that were executed, with the time of the file's last change."""
_BY_POLICY: Final = "not used by dstack, the default policy, which chooses batches itself"


class Repository:
    """All models below the given paths."""

    def __init__(self, paths: Sequence[Path], cores: Sequence[int], runtime: ModelRuntime | None = None) -> None:
        """Paths are directories, Triton repositories, or files of ONNX, Python or replay models."""
        self._paths = paths
        self._cores = cores
        self._runtime = CpuRuntime(cores) if runtime is None else runtime
        self.partly_applied: set[str] = set()
        """Names of loaded models whose Triton config is only partly applied."""

    def scan(self, *, run_code: bool = False) -> dict[str, ModelSource]:
        """Return the models that exist now, by name; the first of two with the same name counts.

        The models of a Python file are known if their names are literals or the file was executed before. Otherwise the
        file is executed if `run_code`; if not, it is listed under its own name as a model that is not loaded.
        """
        sources: dict[str, ModelSource] = {}
        for path in self._paths:
            for source in _sources_in(path, run_code=run_code):
                sources.setdefault(source.name, source)
                if len(sources) > MODELS_LIMIT:
                    raise ConfigError("MODELS", str(path), f"has more than {MODELS_LIMIT} models, which is the limit")
        return sources

    def load(self, source: ModelSource) -> LoadedModel:
        """Load a model; may take long, so it must not run on the event loop's thread."""
        if source.broken:
            raise ModelLoadError(source.broken)
        config = _own_config(source.config)
        triton = None if source.triton is None else _triton_config(source.triton)
        if triton is not None and triton.differences:
            self.partly_applied.add(source.name)
        model = self._runtime.load(source, config, triton)
        if model is not None:
            return model
        if source.path.suffix == ".py":
            if triton is not None:
                raise ModelLoadError(
                    "model.py beside a config.pbtxt belongs to Triton's Python backend, which is not supported"
                )
            return self._load_python(source, config)
        return self._load_onnx(source, config, triton)

    def differences(self, source: ModelSource) -> list[str]:
        """Return the Triton settings that are not applied as written, or why the model cannot be loaded."""
        if source.broken:
            return [source.broken]
        if source.triton is None:
            return []
        try:
            triton = _triton_config(source.triton)
            self.load(source).close()
        except ModelLoadError as error:
            return [str(error)]
        differences = list(triton.differences)
        if triton.max_batch and not triton.dynamic:
            differences.append("dynamic_batching: absent, but queued requests are batched")
        if triton.wait_ns:
            differences.append(
                f"dynamic_batching.max_queue_delay_microseconds: {_BY_POLICY}; fifo, triton and fixed use it"
            )
        if triton.preferred_batches:
            differences.append(f"dynamic_batching.preferred_batch_size: {_BY_POLICY}; fifo and triton use it")
        return differences

    def _load_onnx(self, source: ModelSource, config: ModelConfig, triton: TritonConfig | None) -> LoadedModel:
        sessions = OnnxSessions(source.path, self._cores)
        try:
            return OnnxModel(self._onnx_spec(source, config, triton, sessions), sessions)
        except ModelLoadError:
            sessions.close()
            raise

    def _onnx_spec(
        self, source: ModelSource, config: ModelConfig, triton: TritonConfig | None, sessions: OnnxSessions
    ) -> ModelSpec:
        inputs, outputs = tensor_specs(sessions.takes, sessions.gives)
        declares_batch = means_batches(sessions.takes, sessions.gives)
        max_batch = batch_limit(config, triton, inputs, outputs, declares_batch=declares_batch)
        spec = ModelSpec(source.name, source.version, PLATFORM, inputs, outputs, max_batch)
        if triton is not None:
            spec = with_triton_config(spec, triton)
        return with_config(spec, config)

    def _load_python(self, source: ModelSource, config: ModelConfig) -> LoadedModel:
        models = models_in(source.path)
        if source.name not in models:
            raise ModelLoadError(f"{source.path.name} defines no Model of that name, only {', '.join(sorted(models))}")
        model = models[source.name]
        max_batch = model.max_batch if config.max_batch is None else config.max_batch
        if max_batch and not model.max_batch:
            raise ModelLoadError(f"a batch of {max_batch} is configured, but the callable supports no batching")
        front = (-1,) if model.max_batch else ()
        sides = [
            tuple(msgspec.structs.replace(tensor, shape=(*front, *tensor.shape)) for tensor in side)
            for side in (model.inputs, model.outputs)
        ]
        decoupled = model.decoupled
        if decoupled and max_batch:
            raise ModelLoadError("a decoupled model answers one request at a time: remove max_batch")
        spec = ModelSpec(source.name, source.version, PYTHON, sides[0], sides[1], max_batch, decoupled=decoupled)
        return PythonModel(with_config(spec, config), model)


def fingerprint(source: ModelSource) -> tuple[object, ...]:
    """Return what changes whenever a file of a model does."""
    paths = [source.path, source.config, *([source.triton] if source.triton else [])]
    if source.path.suffix == ".onnx" and source.path.is_file():
        with contextlib.suppress(ModelLoadError, OSError):
            paths += [source.path.parent / location for location in external_files(source.path)]
    states = []
    for path in paths:
        try:
            status = path.stat()
            states.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            states.append((str(path), 0, 0, 0))
    return (source.version, source.broken, *states)


def _sources_in(path: Path, *, run_code: bool) -> list[ModelSource]:
    if path.is_file():
        return _from_file(path, run_code=run_code)
    if not path.is_dir():
        raise ConfigError("MODELS", str(path), "is neither a directory nor a file; name one with models")
    sources: list[ModelSource] = []
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        try:
            if entry.is_dir():
                sources += _from_folder(entry)
            elif entry.suffix in (".onnx", ".py") or entry.name.endswith(SUFFIX):
                sources += _from_file(entry, run_code=run_code)
        except OSError as error:  # one unreadable entry must not hide the others
            sources.append(_broken(entry, f"it cannot be read: {error.strerror or error}"))
    return sources


def _broken(path: Path, reason: str) -> ModelSource:
    return _with_checked_name(ModelSource(path.stem, "1", path, path, broken=reason))


def _from_file(path: Path, *, run_code: bool) -> list[ModelSource]:
    if path.suffix == ".onnx":
        return [_with_checked_name(ModelSource(path.stem, "1", path, path.with_suffix(".toml")))]
    if path.name.endswith(SUFFIX):
        name = path.name.removesuffix(SUFFIX)
        return [_with_checked_name(ModelSource(name, "1", path, path.with_name(f"{name}.toml")))]
    if path.suffix != ".py":
        raise ConfigError("MODELS", str(path), f"is neither .onnx, .py nor {SUFFIX}, nor a directory of such files")
    status = path.stat()
    try:
        regular_size(path.name, status)
    except ModelLoadError as error:
        return [_broken(path, str(error))]
    changed_ns = status.st_mtime_ns
    executed_ns, names = _executed_names.get(path, (0, None))
    try:
        if executed_ns != changed_ns:
            names = model_names(path)
        if names is None and run_code:
            names = tuple(models_in(path))
            _executed_names[path] = changed_ns, names
    except ModelLoadError as error:
        return [ModelSource(path.stem, "1", path, path, broken=str(error))]
    if names is None:
        return [ModelSource(path.stem, "1", path, path, broken=_NOT_EXECUTED)]
    return [_with_checked_name(ModelSource(name, "1", path, path.with_name(f"{name}.toml"))) for name in names]


def _from_folder(folder: Path) -> list[ModelSource]:
    versions = sorted(
        (int(folder_entry.name), folder_entry)
        for folder_entry in folder.iterdir()
        if folder_entry.name.isdecimal() and folder_entry.is_dir()
    )
    config = folder / "config.pbtxt"
    triton = config if config.is_file() else None
    if not versions:
        if triton is None:
            return []
        return [ModelSource(folder.name, "", folder, folder, broken="it has no version directory such as 1/")]
    names = ["model.onnx", "model.py"]
    if triton is not None:
        try:
            triton_config = _triton_config(triton)
        except ModelLoadError as error:
            return [
                _with_checked_name(ModelSource(folder.name, str(versions[-1][0]), folder, folder, broken=str(error)))
            ]
        names = [triton_config.file] if triton_config.file else names
        versions = [
            version for version in versions if not triton_config.versions or version[0] in triton_config.versions
        ]
        if not versions:
            broken = f"version_policy of its config.pbtxt names {list(triton_config.versions)}, none of which is there"
            return [ModelSource(folder.name, "", folder, folder, broken=broken)]
    number, newest = versions[-1]
    for name in names:
        if (newest / name).is_file():
            source = ModelSource(folder.name, str(number), newest / name, folder / OWN_CONFIG, triton)
            return [_with_checked_name(source)]
    return [ModelSource(folder.name, str(number), newest, folder, broken=f"{newest.name}/ has no {names[0]}")]


def _with_checked_name(source: ModelSource) -> ModelSource:
    if NAME.match(source.name):
        return source
    return source._replace(broken="its name has other characters than letters, digits, dot, underscore and hyphen")


def _own_config(path: Path) -> ModelConfig:
    try:
        return decode_model_config(read_file(path).decode(), path.name)
    except FileNotFoundError:
        return ModelConfig()
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(str(error)) from None


def _triton_config(path: Path) -> TritonConfig:
    try:
        return read_config(read_file(path).decode(), path.name)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(str(error)) from None
