"""Worker process that runs one model on its part of a GPU: `python -m cotenant.serve.runtime.gpu.worker`.

Its standard input is a socket to the server. It knows nothing of shares, nodes or other workers: MPS limits its SMs,
the node its memory. It ends when the server does.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

from cotenant.runner.clock import pause
from cotenant.serve.model.tensor import TensorSpec
from cotenant.serve.runtime.gpu.device import GpuDevice
from cotenant.serve.runtime.gpu.shared_tensors import (
    BatchFailure,
    BatchResult,
    CheckDevice,
    DeviceHealthy,
    RunBatch,
    TensorLocation,
    TensorMemory,
    WorkerFailure,
    WorkerReady,
    WorkerSetup,
    receive_server_message,
    send,
)

ENDED = 3
"""Exit code after the device was lost."""
_LAST_RUN_S = 5.0


class DeviceLostError(Exception):
    """The device is lost; every later run would fail as well."""


class ModelExecutor(Protocol):
    """Runs one model in a worker."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    means_batches: bool

    def device(self) -> GpuDevice:
        """Return the device."""
        ...

    def run(
        self, batch: RunBatch, inputs_memory: TensorMemory, outputs_memory: TensorMemory
    ) -> tuple[int, tuple[TensorLocation, ...], int]:
        """Run a batch; return the device time, the locations of the outputs, and the result of `TensorMemory.reserve`.

        Raise `DeviceLostError`, or another exception if only this run failed.
        """
        ...

    def check(self) -> None:
        """Raise `DeviceLostError` if the device is lost."""
        ...


def _executor(setup: WorkerSetup) -> ModelExecutor:
    if setup.kind == "replay":
        from cotenant.serve.runtime.gpu.worker_replay import ReplayExecutor  # noqa: PLC0415  each kind of worker imports only what it needs

        return ReplayExecutor(setup)
    from cotenant.serve.runtime.gpu.worker_onnx import OnnxExecutor  # noqa: PLC0415  each kind of worker imports only what it needs

    return OnnxExecutor(setup)


def _exit_with(channel: socket.socket) -> None:
    """Exit after the server is gone, with time for the active run to end."""
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLRDHUP)
    while not poller.poll():
        pass
    pause(_LAST_RUN_S)
    os._exit(ENDED)


def main(_arguments: Sequence[str]) -> int:
    """Process messages until the server is gone."""
    channel = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    inputs_memory, outputs_memory = TensorMemory(), TensorMemory()
    setup = receive_server_message(channel, inputs_memory)
    if not isinstance(setup, WorkerSetup):
        return ENDED
    threading.Thread(target=_exit_with, args=(channel,), daemon=True).start()
    try:
        executor = _executor(setup)
        device = executor.device()
        send(channel, WorkerReady(os.getpid(), *device, executor.inputs, executor.outputs, executor.means_batches))
        while (message := receive_server_message(channel, inputs_memory)) is not None:
            if isinstance(message, RunBatch):
                _run(channel, executor, message, inputs_memory, outputs_memory)
            elif isinstance(message, CheckDevice):
                executor.check()
                send(channel, DeviceHealthy())
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001  the server reports it
        _report_failure(channel, str(error)[:1000] or type(error).__name__)
        return ENDED
    return 0


def _run(
    channel: socket.socket,
    executor: ModelExecutor,
    batch: RunBatch,
    inputs_memory: TensorMemory,
    outputs_memory: TensorMemory,
) -> None:
    try:
        took_ns, tensors, descriptor = executor.run(batch, inputs_memory, outputs_memory)
    except DeviceLostError as error:
        send(channel, BatchFailure(batch.run, str(error)[:1000], is_last=True))
        raise
    except Exception as error:  # noqa: BLE001  only this run failed
        send(channel, BatchFailure(batch.run, str(error)[:1000] or type(error).__name__, is_last=False))
        return
    send(channel, BatchResult(batch.run, took_ns, tensors), descriptor)


def _report_failure(channel: socket.socket, reason: str) -> None:
    try:
        send(channel, WorkerFailure(reason))
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
