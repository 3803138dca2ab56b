"""Fitted parameters of the services and trainings that a simulated cluster runs, read from parameters.json.

The file names the public data sets from which each parameter was fitted. `cotenant_lab.physics.catalogue` writes it,
and a test compares it with the data. Services have no measured memory use: their sizes are spread evenly so that the
mean is the 42 % of 16 GiB that MuxFlow published for its cluster. The speed on a MIG slice includes the slice's part
of the memory bandwidth.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import Final

import msgspec

from cotenant.errors import InvariantError
from cotenant.units.value import Value

VERSION: Final = 1
FILE: Final = "parameters.json"
SHARES_PCT: Final = tuple(range(5, 101, 5))
"""Shares of the SMs at which the speed of a service is given."""
SLICES: Final = (1, 2, 3, 4, 7)
"""MIG slices, of 7, at which the speed of a training is given."""
NARROW: Final = 0.07
"""Part of the SMs that a kernel holds when no smaller share slows it: half of the smallest measured slice."""
_SERVICE_MEMORY: Final = (0.26, 0.58, 16 << 10)
"""Smallest and largest memory of a service, as parts of this many MiB."""


class ParameterSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A public data set from which parameters were fitted."""

    name: str
    repository: str
    license: str
    hardware: str
    provides: str


class FittedProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One service or training alone on the whole GPU, in the units of the file."""

    name: str
    took_us: int
    """Duration of one request or training step."""
    busy_pct: int
    """Part of that time with work on the GPU."""
    wide_pct: int
    """Part of that time with work on every SM."""
    memory_bound_pct: int
    """Part of the time on the GPU in which memory bandwidth is the limit."""
    kernel_us: int
    """Mean kernel duration."""
    longest_kernel_us: int
    remaining_kernel_us: int
    """Mean remaining duration of the kernel that runs at a random instant."""
    speeds_pct: tuple[int, ...]
    """Speed at each share or slice, up to the first at which it equals that of the whole GPU."""
    memory_mib: int = 0
    """0: not measured."""


class FittedParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of parameters.json."""

    version: int
    made_by: str
    sources: tuple[ParameterSource, ...]
    services: tuple[FittedProgram, ...]
    trainings: tuple[FittedProgram, ...]


class Row(Value, frozen=True):
    """One service or training alone on the whole GPU, in the units of the simulation."""

    name: str
    took_ns: int
    busy: float
    wide: float
    memory: float
    """Part of the time on the GPU in which memory bandwidth is the limit."""
    kernel_ns: int
    longest_ns: int
    remaining_ns: int
    shares: tuple[float, ...]
    speeds: tuple[float, ...]
    memory_bytes: int


@functools.cache
def fitted_parameters() -> FittedParameters:
    """Return the parameters that come with the package."""
    content = importlib.resources.files(__package__).joinpath(FILE).read_bytes()
    parameters = msgspec.json.decode(content, type=FittedParameters)
    if parameters.version != VERSION:
        raise InvariantError(f"{FILE} has version {parameters.version}, and this program reads version {VERSION}")
    return parameters


@functools.cache
def services() -> tuple[Row, ...]:
    """Return the services of the simulated clusters."""
    return _rows(fitted_parameters().services, tuple(pct / 100 for pct in SHARES_PCT))


@functools.cache
def trainings() -> tuple[Row, ...]:
    """Return the trainings of the simulated clusters."""
    return _rows(fitted_parameters().trainings, tuple(slices / SLICES[-1] for slices in SLICES))


def _rows(programs: tuple[FittedProgram, ...], shares: tuple[float, ...]) -> tuple[Row, ...]:
    smallest, largest, whole_mib = _SERVICE_MEMORY
    rows = []
    for index, program in enumerate(programs):
        spread_mib = whole_mib * (smallest + (largest - smallest) * (index * 7 % len(programs)) / (len(programs) - 1))
        speeds = [pct / 100 for pct in program.speeds_pct]
        rows.append(
            Row(
                program.name,
                1000 * program.took_us,
                program.busy_pct / 100,
                program.wide_pct / 100,
                program.memory_bound_pct / 100,
                1000 * program.kernel_us,
                1000 * program.longest_kernel_us,
                1000 * program.remaining_kernel_us,
                shares,
                (*speeds, *(1.0,) * (len(shares) - len(speeds))),
                (program.memory_mib or round(spread_mib)) << 20,
            )
        )
    return tuple(rows)
