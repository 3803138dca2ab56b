"""Executor of replay models: launches the kernels on the process's libcuda.so.1; the outputs are zeros."""

from __future__ import annotations

from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.serve.replay_model_format import decode_replay, player_script
from cotenant.serve.runtime.gpu.device import GpuDevice, device_error, own_device
from cotenant.serve.runtime.gpu.shared_tensors import RunBatch, TensorLocation, TensorMemory, WorkerSetup, tensor_layout
from cotenant.serve.runtime.gpu.worker import DeviceLostError
from cotenant.workload.player import ScriptPlayer, hold_device_memory


class ReplayExecutor:
    """A model of which only the kernel times are known."""

    def __init__(self, setup: WorkerSetup) -> None:
        """Create a context with the kernels of every batch, and allocate the size of its weights."""
        path = Path(setup.path)
        try:
            model = decode_replay(path.read_text(encoding="utf-8"), path.name)
        except (CotenantError, OSError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from None
        script = player_script(model)
        self.inputs = model.inputs
        self.outputs = model.outputs
        self._parts = script.parts
        self._batches = self.means_batches = bool(model.max_batch)
        self._player = ScriptPlayer(script.script, script.image)
        if model.weights_bytes:
            hold_device_memory(model.weights_bytes)

    def device(self) -> GpuDevice:
        """Query the driver."""
        return own_device()

    def run(
        self, batch: RunBatch, inputs_memory: TensorMemory, outputs_memory: TensorMemory
    ) -> tuple[int, tuple[TensorLocation, ...], int]:
        """Launch the kernels of the batch; unwritten memory is zero."""
        del inputs_memory
        locations, size_bytes = tensor_layout(self.outputs, batch.rows)
        descriptor = outputs_memory.reserve(size_bytes)
        first_launch, count = self._parts[batch.rows if self._batches else 1]
        try:
            return self._player.play(first_launch, count, batch.due_ns), locations, descriptor
        except OSError as error:
            raise DeviceLostError(str(error)) from None

    def check(self) -> None:
        """Raise `DeviceLostError` after a driver error, which appears on synchronisation."""
        code = device_error()
        if code:
            raise DeviceLostError(f"the device is lost (CUDA error {code})")
