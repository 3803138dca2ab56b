"""Kernel stream of a model on a GPU: durations, host times and uncertainties of one request or training step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from cotenant.profile.estimate.devices import Gpu
from cotenant.profile.estimate.duration import Correction, KernelTime, kernel_time
from cotenant.profile.estimate.fuse import fuse
from cotenant.profile.estimate.kernels import KernelWork, Phase, Precision, forward_kernels, training_kernels
from cotenant.profile.estimate.onnx_operators import ModelOperators
from cotenant.profile.estimate.operator import Family, Operator
from cotenant.profile.estimate.parameters import DEVICE_DOUBT, DOUBT, FITTED, HOST_DOUBT, DurationParameters
from cotenant.units.estimate import Estimate, around
from cotenant.units.value import Value
from cotenant.workload.kernel import KernelIdentity
from cotenant.workload.load import Launch
from cotenant.workload.timeline import Activity, Timeline, timeline_of

Mode = Literal["eager", "fused"]
EAGER_NS: Final = 9_000.0
"""Host time of one operator of an eager framework: our choice for a current server CPU."""
FUSED_NS: Final = 3_000.0
"""Host time of one launch of a compiled engine."""
GRAPH_NS: Final = 10_000.0
"""Host time of the launch of a whole CUDA graph."""
GRAPH_KERNEL_NS: Final = 1_000.0
"""Time between two kernels of a graph on the device."""
_NORMAL_90: Final = 1.645
"""Standard deviations of a normal distribution on either side of the mean that contain 90 %."""
_MEASURED_DOUBT: Final = 0.5
"""A correction from one measurement leaves this part of the doubt; more measurements leave less."""
_VECTOR: Final = {
    "float16": Precision.FP16,
    "bfloat16": Precision.BF16,
    "int8": Precision.INT8,
    "uint8": Precision.INT8,
}


class StreamOptions(Value, frozen=True, kw_only=True):
    """How a model is run."""

    mode: Mode = "eager"
    precision: Precision | None = None
    """None: the type of the model's weights; convolutions of fp32 models use TF32 where a framework would."""
    train: bool = False
    graph: bool = False
    """Each request is one CUDA graph."""
    host_ns: float = 0.0
    """Host time of one operator (eager) or launch (fused); 0: the default of the mode."""
    request_ns: float = 0.0
    """Host time of a request before its first launch, as for decoding its input."""


class FamilyTime(Value, frozen=True):
    """Device time of all kernels of one family."""

    family: str
    kernels: int
    device_ns: float
    share: float


class UnsupportedOperator(Value, frozen=True):
    """An operator without a rule: its tensors count as moved once, and its time is uncertain by a factor of 7."""

    type: str
    count: int
    share: float
    """Of the estimated device time."""
    reason: str = ""
    """Why its rule could not be applied; empty: it has none."""

    @property
    def sentence(self) -> str:
        """Return what a user must know of it."""
        what = f"{self.count} x {self.type} is not supported"
        if self.reason:
            what = f"{self.count} x {self.type} cannot be estimated ({self.reason})"
        return f"{what}: its tensors count as moved once, {self.share:.1%} of the estimated device time"


class EstimatedStream(Value, frozen=True, kw_only=True):
    """One request or training step of a model on a GPU."""

    name: str
    gpu: Gpu
    batch: int
    options: StreamOptions
    kernels: tuple[KernelTime, ...]
    host_ns: tuple[float, ...]
    """Host time before each launch."""
    latency_ns: Estimate
    device_ns: Estimate
    memory_bytes: int
    """Weights and activations that must be resident: an estimate for admission, not a measurement."""
    flops: float
    moved_bytes: float
    unsupported: tuple[UnsupportedOperator, ...] = ()
    notes: tuple[str, ...] = ()
    """What was assumed about the model, in sentences."""
    correction: Correction = Correction()

    @property
    def families(self) -> list[FamilyTime]:
        """Return device times by family, the longest first."""
        times: dict[Family, list[float]] = {}
        for kernel in self.kernels:
            times.setdefault(kernel.work.family, []).append(kernel.device_ns)
        total = sum(sum(values) for values in times.values()) or 1.0
        rows = [
            FamilyTime(family.value, len(values), sum(values), sum(values) / total) for family, values in times.items()
        ]
        return sorted(rows, key=lambda row: -row.device_ns)

    @property
    def remarks(self) -> list[str]:
        """Return what a user must know of the estimate: operators without a rule, and assumptions."""
        return [*(row.sentence for row in self.unsupported), *self.notes]

    @property
    def busy(self) -> float:
        """Return the part of the latency in which the device runs a kernel."""
        return min(self.device_ns.point / max(self.latency_ns.point, 1.0), 1.0)


def estimate_stream(
    name: str,
    model: ModelOperators,
    gpu: Gpu,
    options: StreamOptions,
    *,
    correction: Correction | None = None,
    parameters: DurationParameters = FITTED,
) -> EstimatedStream:
    """Return the kernel stream of one request."""
    factor = correction or Correction()
    operators = list(model.operators)
    if options.mode == "fused" and not options.train:
        operators = fuse(operators)
    works = _with_precision(_works(operators, model, options), model, gpu, options)
    kernels = tuple(kernel_time(work, gpu, parameters, factor) for work in works)
    host_ns = _host_ns(works, options, factor)
    if host_ns:
        host_ns[0] += options.request_ns
    spread = _spread(kernels, factor)
    device = sum(kernel.device_ns for kernel in kernels)
    point, device_more, host_more = (
        latency_of([kernel.device_ns * times for kernel in kernels], [value * hosts for value in host_ns], options)
        for times, hosts in ((1.0, 1.0), (math.exp(spread), 1.0), (1.0, math.exp(HOST_DOUBT)))
    )
    doubt = math.hypot(math.log(device_more / point), math.log(host_more / point)) if point else 0.0
    return EstimatedStream(
        name=name,
        gpu=gpu,
        batch=model.batch,
        options=options,
        kernels=kernels,
        host_ns=tuple(host_ns),
        latency_ns=around(point, _NORMAL_90 * doubt),
        device_ns=around(device, _NORMAL_90 * spread),
        memory_bytes=_memory_bytes(model, options),
        flops=sum(work.flops for work in works),
        moved_bytes=sum(work.moved_bytes for work in works),
        unsupported=_unsupported(kernels, model.operators),
        notes=model.notes,
        correction=factor,
    )


def _works(operators: Sequence[Operator], model: ModelOperators, options: StreamOptions) -> list[KernelWork]:
    precision = model_precision(model, options)
    if options.train and not model.backward_traced:
        return list(training_kernels(operators, precision, model.parameters))
    return [work for operator in operators for work in forward_kernels(operator, precision)]


def model_precision(model: ModelOperators, options: StreamOptions) -> Precision:
    """Return the arithmetic of most products."""
    if options.precision is None and model.is_quantized and options.mode == "fused":
        return Precision.INT8
    return options.precision or _VECTOR.get(model.precision, Precision.FP32)


def _with_precision(
    works: Sequence[KernelWork], model: ModelOperators, gpu: Gpu, options: StreamOptions
) -> list[KernelWork]:
    """Use TF32 where a framework does by default: in convolutions of PyTorch, and everywhere in TensorRT."""
    precision = model_precision(model, options)
    if precision is Precision.FP16 and options.mode == "fused" and gpu.fp16_short:
        return [msgspec.structs.replace(work, precision=Precision.FP16_SHORT) for work in works]
    if options.precision is not None or precision is not Precision.FP32 or not gpu.tf32:
        return list(works)
    return [
        msgspec.structs.replace(work, precision=Precision.TF32)
        if work.gemm is not None and (options.mode == "fused" or work.family is Family.CONVOLUTION)
        else work
        for work in works
    ]


def _host_ns(works: Sequence[KernelWork], options: StreamOptions, factor: Correction) -> list[float]:
    each = (options.host_ns or (EAGER_NS if options.mode == "eager" else FUSED_NS)) * factor.host
    if options.graph:
        return [GRAPH_NS if index == 0 else 0.0 for index in range(len(works))]
    if options.mode == "fused" and not options.train:
        return [each] * len(works)
    return [each * work.operators if work.operators else FUSED_NS for work in works]


def latency_of(device_ns: Sequence[float], host_ns: Sequence[float], options: StreamOptions) -> float:
    """Return the time from the first host call to the end of the last kernel, with kernels in order on one stream."""
    host = end = 0.0
    gap_ns = GRAPH_KERNEL_NS if options.graph else 0.0
    for duration, before in zip(device_ns, host_ns, strict=True):
        host += before
        end = max(host, end + gap_ns) + duration
    return end


def _spread(kernels: Sequence[KernelTime], factor: Correction) -> float:
    """Return the standard deviation of the logarithm of the device time.

    Errors of one family are common to all its kernels; those of different families are independent.
    """
    total = sum(kernel.device_ns for kernel in kernels) or 1.0
    parts: dict[Family, float] = {}
    for kernel in kernels:
        parts[kernel.work.family] = parts.get(kernel.work.family, 0.0) + kernel.device_ns / total
    common = math.sqrt(sum((share * DOUBT[family]) ** 2 for family, share in parts.items()))
    known = _MEASURED_DOUBT / math.sqrt(factor.measurements) if factor.measurements else 1.0
    return math.hypot(common, DEVICE_DOUBT) * known


def _memory_bytes(model: ModelOperators, options: StreamOptions) -> int:
    precision = model_precision(model, options)
    scale = precision.item_bytes / 4
    results = [operator.written_bytes for operator in model.operators if operator.family is not Family.VIEW]
    if options.train:
        # Activations are kept for the backward pass; weights, gradients and momentum are resident.
        return round(sum(results) * scale + 3 * model.weight_bytes)
    return round(3 * max(results, default=0) * scale + model.weight_bytes * scale)


def _unsupported(kernels: Sequence[KernelTime], operators: Sequence[Operator]) -> tuple[UnsupportedOperator, ...]:
    names = {operator.type for operator in operators if operator.family is Family.UNSUPPORTED}
    total = sum(kernel.device_ns for kernel in kernels) or 1.0
    rows = []
    for name in sorted(names):
        own = [
            kernel.device_ns
            for kernel in kernels
            if kernel.work.operator == name and kernel.work.family is Family.UNSUPPORTED
        ]
        same = [operator for operator in operators if operator.type == name and operator.family is Family.UNSUPPORTED]
        reason = next((operator.reason for operator in same if operator.reason), "")
        rows.append(UnsupportedOperator(name, len(same), sum(own) / total, reason))
    return tuple(rows)


def launches_of_stream(stream: EstimatedStream) -> tuple[Launch, ...]:
    """Return the stream as launches of a tenant."""
    following = (*stream.host_ns[1:], 0.0)
    return tuple(
        Launch(
            _identity(kernel),
            max(round(kernel.device_ns), 1),
            round(interval),
            0,
            kernel.registers,
            0,
            kernel.memory_bound,
        )
        for kernel, interval in zip(stream.kernels, following, strict=True)
    )


def timeline_of_stream(stream: EstimatedStream, task: str, device: str) -> Timeline:
    """Return the stream as a timeline of one request, as a profiler would record it."""
    host = end = 0.0
    activities = []
    for kernel, before in zip(stream.kernels, stream.host_ns, strict=True):
        host += before
        start = max(host, end)
        end = start + kernel.device_ns
        activities.append(
            Activity(
                _identity(kernel),
                0,
                round(start),
                max(round(kernel.device_ns), 1),
                round(host),
                kernel.registers,
                0,
                kernel.memory_bound,
            )
        )
    return timeline_of(task, device, stream.gpu.sms, activities)


def _identity(kernel: KernelTime) -> KernelIdentity:
    name = kernel.work.function
    phase = kernel.work.phase
    suffix = "" if phase is Phase.FORWARD or "backward" in name or "grad" in name else f"_{phase.value}"
    return KernelIdentity(name + suffix, (kernel.blocks, 1, 1), (kernel.threads, 1, 1), kernel.shared_bytes)
