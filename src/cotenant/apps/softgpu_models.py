"""Wires `cotenant softgpu models`: files of replay models, for a server that plays them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cotenant.apps.lab import named_directory
from cotenant.errors import ConfigError, WorldError
from cotenant.experiment.replays import built_in, built_in_model, listed, listed_model, slowed
from cotenant.format.replay import SUFFIX, encode_replay


def write_models(
    folder: Path, names: Sequence[str], data: str | None, slower: float, environ: Mapping[str, str]
) -> list[Path]:
    """Write them, by name or all; with `data`, also what was measured there. Returns the files."""
    if not 0.01 <= slower <= 1000:
        raise ConfigError("--slower", slower, "choose 0.01 to 1000")
    lists = {} if data is None else listed(named_directory(data, environ))
    if data is not None and not lists:
        raise ConfigError("--data", data, "there are no kernel lists of inference (orion/model_kernels/*_fwd.csv)")
    unknown = [name for name in names if name not in lists and name not in built_in()]
    if unknown:
        more = "" if lists else "; more by --data"
        raise ConfigError("NAME", unknown[0], f"there are {', '.join([*built_in(), *lists])}{more}")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or dict.fromkeys([*built_in(), *lists]):
            measured = lists.get(name)
            model = built_in_model(name) if measured is None else listed_model(measured)
            about = "a shape of our own" if measured is None else f"from the kernel list {measured.name}"
            path = folder / f"{name}{SUFFIX}"
            path.write_text(encode_replay(slowed(model, slower), f"{name}: {about}; nothing is computed"), "utf-8")
            written.append(path)
    except OSError as error:
        raise WorldError(f"cannot write {error.filename}: {error.strerror}") from None
    return written
