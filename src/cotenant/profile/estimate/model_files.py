"""Models from files: ONNX, and Python modules or scripts that PyTorch traces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotenant.errors import ConfigError
from cotenant.profile.estimate.onnx_operators import ModelOperators, onnx_operators

SUFFIXES = (".onnx", ".py")


def is_model(name: str) -> bool:
    """Return whether a name is a model, rather than a recording: an ONNX file, a script, or FILE.py:FUNCTION."""
    return name.endswith(SUFFIXES) or ".py:" in name


def model_name(name: str) -> str:
    """Return the default name of a model: that of its file."""
    path, _, function = name.partition(".py:")
    stem = Path(path).name.removesuffix(".onnx").removesuffix(".py")
    return f"{stem}-{function}" if function else stem


def read_model(name: str, batch: int, dimensions: Mapping[str, int], *, train: bool) -> ModelOperators:
    """Return the operators of a model at one batch size; for a Python file also those of a training step."""
    if batch < 1:
        raise ConfigError("--batch", batch, "choose 1 or more")
    path = Path(name.partition(".py:")[0] + ".py" if ".py:" in name else name)
    if not path.is_file():
        raise ConfigError("FILE", name, "does not exist; name an ONNX file, FILE.py or FILE.py:FUNCTION")
    if name.endswith(".onnx"):
        return onnx_operators(path, batch, dimensions)
    from cotenant.profile.estimate.torch_trace import trace_program  # noqa: PLC0415  it needs PyTorch, an optional package

    return trace_program(path, name.partition(".py:")[2], batch, train=train)
