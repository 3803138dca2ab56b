"""Pairs of public measurements as launch streams for the player and the simulator.

Kernels take as long as they took where they were measured; the SMs, memory and time slices are those of a V100. Host
times in traces with Python stacks are inflated by the profiler; "/4" in a name means that they are divided by four.
Copies and memsets within the device become kernels that occupy it for as long: the software GPU would really move the
bytes, at the host's cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.errors import ConfigError
from cotenant.profile.import_files import read_recordings
from cotenant.units.instant import MICROSECOND_NS, MILLISECOND_NS
from cotenant.units.value import Value
from cotenant.workload.kernel import KernelIdentity, WorkKind
from cotenant.workload.load import BACK_TO_BACK, TRAINING, Arrival, Launch, Workload, launches_of, periodic, poisson
from cotenant.workload.timeline import Timeline
from cotenant_lab.data.trt import read_layers

RUN_NS: Final = 300 * MILLISECOND_NS
"""Approximate duration of the online part of a pair when it runs alone."""

PAUSE_NS: Final = 2 * MILLISECOND_NS
"""Longer intervals within a request are cut to this value: autotuning and data loading are no part of a service."""

_V100_SMS: Final = 80
"""Blocks of a TensorRT engine's layer, whose grid is not published: it fills the device."""
_ONE_PER_SM: Final = ((1024, 1, 1), 64)
"""Block size and registers of which one block fits on an SM."""
FAMILIES: Final = ("eager", "host-bound", "graph", "periodic", "poisson")
_TIMELINES: Final = "kernel_timelines"
_LISTS: Final = "orion"
_ENGINES: Final = "trt_engine_explorer"


class Pair(Value, frozen=True):
    """An online and an offline load on one device."""

    name: str
    family: str
    """One of `FAMILIES`."""
    online: Workload
    offline: Workload


class LoadRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """One load before its file is read."""

    name: str
    path: str
    host_ns: int = 0
    """Host interval of every launch, for lists without host times."""
    scale: float = 1.0
    """Factor for host times that a profiler inflated."""
    arrival: Arrival = BACK_TO_BACK
    graph: bool = False
    part: tuple[int, int] | None = None
    """Range of launches to use: one iteration out of several."""


class PairPlan(msgspec.Struct, frozen=True):
    """A pair before its files are read."""

    family: str
    online: LoadRecipe
    offline: LoadRecipe


class MissingPair(msgspec.Struct, frozen=True):
    """A pair whose files are missing, and which one."""

    name: str
    why: str


def _eager(name: str, file: str, scale: float = 1.0, arrival: Arrival = BACK_TO_BACK) -> LoadRecipe:
    marked = name if scale == 1.0 else f"{name} /{round(1 / scale)}"
    return LoadRecipe(name=marked, path=f"{_TIMELINES}/{file}.csv.gz", scale=scale, arrival=arrival)


def _listed(name: str, file: str, host_us: int, arrival: Arrival = BACK_TO_BACK) -> LoadRecipe:
    return LoadRecipe(name=name, path=f"{_LISTS}/{file}.csv", host_ns=host_us * MICROSECOND_NS, arrival=arrival)


def _engine(name: str, file: str, arrival: Arrival = BACK_TO_BACK) -> LoadRecipe:
    return LoadRecipe(name=name, path=f"{_ENGINES}/{file}.engine.profile.json", arrival=arrival, graph=True)


def _training(name: str, file: str, host_us: int = 4) -> LoadRecipe:
    return LoadRecipe(name=name, path=f"{_LISTS}/{file}.csv", host_ns=host_us * MICROSECOND_NS, arrival=TRAINING)


def _traced_training(name: str, file: str, part: tuple[int, int]) -> LoadRecipe:
    return LoadRecipe(name=name, path=f"{_TIMELINES}/{file}.csv.gz", arrival=TRAINING, part=part)


_RESNET50 = _training("train resnet50 b32", "model_kernels/resnet50_32_fb1")
_RESNET101 = _training("train resnet101 b32", "model_kernels/resnet101_32_fb1")
_MOBILENET = _training("train mobilenetv2 b64", "model_kernels/mobilenetv2_64_fb1")
_WIDE_MOBILENET = _training("train mobilenetv2 b96", "model_kernels/mobilenetv2_96_fb1")
_BERT = _training("train bert b8", "model_kernels/bert_8_fb1")
_TRANSFORMER = _training("train transformer-xl b8", "model_kernels/transformer_xl_8_fb1")
_TRACED = _traced_training("train resnet50 b32, traced", "v100_resnet50_ddp_train_ns", (0, 1219))

_BERT_SMALL: Final = "h100_bert_small_inference_eager"
_VIT: Final = "h100_vit_base_inference_eager"
_RESNET18_ENGINE: Final = "examples_pytorch_resnet_A100_fp16_resnet.onnx"
_RESNET50_ENGINE: Final = "examples_tensorflow_resnet_RTX-3090_qat_resnet-qat.onnx"
_MOBILENET_ENGINE: Final = "tests_inputs_mobilenet_v2_residuals.qat.onnx"

PLANS: Final[tuple[PairPlan, ...]] = (
    PairPlan("eager", _eager("bert-small", _BERT_SMALL), _RESNET50),
    PairPlan("eager", _eager("bert-small", _BERT_SMALL, 0.25), _BERT),
    PairPlan("eager", _eager("vit-base", _VIT), _TRACED),
    PairPlan("eager", _eager("vit-base", _VIT, 0.25), _MOBILENET),
    PairPlan("eager", _eager("vllm prefill", "b200_vllm_prefill888_eager", 0.25), _RESNET101),
    PairPlan("eager", _eager("bert-small mi300x", "mi300x_bert_small_inference_eager", 0.25), _TRANSFORMER),
    PairPlan("host-bound", _listed("mobilenetv2 b4", "model_kernels/mobilenetv2_4_fwd", 10), _RESNET50),
    PairPlan("host-bound", _listed("resnet50 b4", "model_kernels/resnet50_4_fwd", 10), _WIDE_MOBILENET),
    PairPlan("host-bound", _listed("resnet101 b4", "model_kernels/resnet101_4_fwd", 8), _BERT),
    PairPlan("host-bound", _listed("efficientnet b4", "profiles_new/efficientnet_4_fwd_new", 10), _TRACED),
    PairPlan("host-bound", _listed("transformer-xl b4", "model_kernels/transformer_xl_4_fwd", 5), _RESNET101),
    PairPlan("graph", _engine("trt resnet18 fp16", _RESNET18_ENGINE), _RESNET50),
    PairPlan("graph", _engine("trt resnet50 int8", _RESNET50_ENGINE), _TRANSFORMER),
    PairPlan(
        "periodic",
        _listed("resnet50 b4", "model_kernels/resnet50_4_fwd", 10, periodic(40 * MILLISECOND_NS)),
        _RESNET50,
    ),
    PairPlan("periodic", _engine("trt mobilenetv2 int8", _MOBILENET_ENGINE, periodic(5 * MILLISECOND_NS)), _BERT),
    PairPlan("poisson", _eager("bert-small", _BERT_SMALL, 0.25, poisson(60.0, 1)), _RESNET101),
    PairPlan(
        "poisson",
        _listed("mobilenetv2 b4", "model_kernels/mobilenetv2_4_fwd", 10, poisson(60.0, 2)),
        _WIDE_MOBILENET,
    ),
)


def plan_name(plan: PairPlan) -> str:
    """Return the name of the pair."""
    kind = {"periodic": ", periodic", "poisson": ", poisson"}.get(plan.online.arrival.kind, "")
    return f"{plan.online.name}{kind} + {plan.offline.name}"


def read_pairs(
    directory: Path, plans: Sequence[PairPlan] = PLANS, run_ns: int = RUN_NS
) -> tuple[list[Pair], list[MissingPair]]:
    """Return the pairs whose files exist, and those that are omitted because a file is missing."""
    loads: dict[LoadRecipe, Workload] = {}
    pairs, missing = [], []
    for plan in plans:
        absent = [part.path for part in (plan.online, plan.offline) if not (directory / part.path).is_file()]
        if absent:
            missing.append(MissingPair(plan_name(plan), f"{directory / absent[0]} does not exist"))
            continue
        for recipe in (plan.online, plan.offline):
            if recipe not in loads:
                loads[recipe] = read_load(directory, recipe, run_ns)
        pairs.append(Pair(plan_name(plan), plan.family, loads[plan.online], loads[plan.offline]))
    return pairs, missing


def read_load(directory: Path, recipe: LoadRecipe, run_ns: int = RUN_NS) -> Workload:
    """Read a load as its recipe describes it, with as many requests as take about `run_ns` alone."""
    path = directory / recipe.path
    reader: Callable[[Path, LoadRecipe], tuple[Launch, ...]] = _layers if recipe.path.endswith(".json") else _measured
    load = Workload(recipe.name, reader(path, recipe), recipe.arrival, 1, recipe.graph)
    return msgspec.structs.replace(load, requests=_requests(load, run_ns))


def _requests(load: Workload, run_ns: int) -> int:
    arrival = load.arrival
    each_ns = max(load.device_ns, load.host_ns, 1)
    if arrival.kind == "training":
        return 1
    if arrival.kind == "periodic":
        each_ns = arrival.period_ns
    elif arrival.kind == "poisson":
        each_ns = round(1e9 / arrival.rate_per_s)
    return max(round(run_ns / each_ns), 3)


def _measured(path: Path, recipe: LoadRecipe) -> tuple[Launch, ...]:
    recording = next(iter(read_recordings(path)))
    if not isinstance(recording, Timeline):
        raise ConfigError("data", str(path), "it is a profile, not a table of kernels; download the data again")
    launches = launches_of(recording)
    if recipe.part is not None:
        launches = launches[slice(*recipe.part)]
    return tuple(_paced(launch, recipe) for launch in launches)


def _paced(launch: Launch, recipe: LoadRecipe) -> Launch:
    """Set the host interval to the recipe's, or to the measured one, scaled and with long pauses cut."""
    interval_ns = recipe.host_ns or round(min(launch.interval_ns, PAUSE_NS) * recipe.scale)
    kernel = launch.kernel
    if kernel.work is WorkKind.MEMSET or (kernel.work is WorkKind.COPY and "dtod" in kernel.function.lower()):
        return _filling(kernel.function, launch.device_ns, interval_ns, launch.stream)
    return msgspec.structs.replace(launch, interval_ns=interval_ns)


def _layers(path: Path, recipe: LoadRecipe) -> tuple[Launch, ...]:
    layers = read_layers(path.read_bytes(), str(path))
    return tuple(_filling(name, device_ns, recipe.host_ns) for name, device_ns in layers)


def _filling(name: str, device_ns: int, interval_ns: int, stream: int = 0) -> Launch:
    """Return a kernel that occupies every SM of a V100 while it runs."""
    block, registers = _ONE_PER_SM
    return Launch(KernelIdentity(name, (_V100_SMS, 1, 1), block), device_ns, interval_ns, stream, registers)
