"""Read the measurements that study `device` compares with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.workload.kernel_table import read_kernels
from cotenant.workload.timeline import Timeline
from cotenant_lab.data import disb, gavel, igniter, miso, parvagpu, rapp
from cotenant_lab.study.data_files import DATA_PAGE, measurement_bytes, missing_data
from cotenant_lab.study.device.servers import ServerMeasurements, measured_of
from cotenant_lab.study.device.split_shares import PairMeasurements

_STREAMS: Final = "orion/model_kernels"
_SURFACE: Final = "rapp/v100_latency_ms_by_sm_quota_batch.csv.gz"
_PROFILES: Final = "parvagpu/all_models.csv"
_ALONE: Final = "igniter/solo.csv"
_PAIRS: Final = "igniter/pairs.csv"
_MISO: Final = ("miso/a100_mig_train_iter_time.csv", "miso/util_collection.txt")
_GAVEL: Final = "gavel/pairs_simulation_throughputs.csv.gz"
_SERVERS: Final = ("trt", "triton", "tfs")


class DeviceMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the data directory."""

    streams: dict[str, Timeline]
    surface: rapp.Surface
    profiles: parvagpu.Profiles
    servers: list[ServerMeasurements]
    pairs: PairMeasurements
    steps: miso.Miso | None = None
    """Trainings on MIG slices; None: not in the directory."""
    together: gavel.TrainingPairs | None = None
    """Pairs of trainings by time slices; None: not in the directory."""


def read_measurements(directory: Path) -> DeviceMeasurements:
    """Read all files that the study uses; an error names the missing or damaged file."""
    for part in (_STREAMS, _SURFACE, _PROFILES, "disb/results", _ALONE, _PAIRS):
        if not (directory / part).exists():
            raise missing_data(directory / part)
    streams = {
        path.stem: read_kernels(measurement_bytes(path), path.stem, str(path))
        for path in sorted((directory / _STREAMS).glob("*_fwd.csv"))
    }
    if not streams:
        raise ConfigError("data", str(directory / _STREAMS), f"has no *_fwd.csv; {DATA_PAGE}")
    for name, stream in streams.items():
        if not stream.busy_ns:
            raise ConfigError("Duration", 0, f"all kernels of {name} take no time; {DATA_PAGE}")
    surface = directory / _SURFACE
    profiles = directory / _PROFILES
    return DeviceMeasurements(
        streams=streams,
        surface=rapp.read_surface(measurement_bytes(surface), str(surface)),
        profiles=parvagpu.read_profiles(measurement_bytes(profiles), str(profiles)),
        servers=[_server(directory / "disb", name) for name in _SERVERS],
        pairs=PairMeasurements(
            alone=igniter.read_alone(measurement_bytes(directory / _ALONE), str(directory / _ALONE)),
            pairs=igniter.read_pairs(measurement_bytes(directory / _PAIRS), str(directory / _PAIRS)),
        ),
        steps=_steps(directory),
        together=_together(directory),
    )


def _steps(directory: Path) -> miso.Miso | None:
    steps, uses = (directory / name for name in _MISO)
    if not steps.exists() or not uses.exists():
        return None
    return miso.read_miso(measurement_bytes(steps), measurement_bytes(uses), str(steps))


def _together(directory: Path) -> gavel.TrainingPairs | None:
    path = directory / _GAVEL
    return gavel.read_pairs(measurement_bytes(path), str(path)) if path.exists() else None


def _server(directory: Path, server: str) -> ServerMeasurements:
    files = sorted((directory / "results").glob(f"{server}.*.json"))
    if not files:
        raise ConfigError("data", str(directory / "results"), f"has no {server}.*.json; {DATA_PAGE}")
    results = {path.name.split(".")[1]: disb.read_results(measurement_bytes(path), str(path)) for path in files}
    workloads = {}
    for name in results:
        path = directory / "workloads" / f"{name}.json"
        workloads[name] = disb.read_workload(measurement_bytes(path), str(path))
    return measured_of(server, workloads, results)
