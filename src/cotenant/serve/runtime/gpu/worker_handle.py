"""The server's handle of one worker process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cotenant.runner.clock import monotonic_ns
from cotenant.runner.process import describe_exit
from cotenant.serve.protocol.oip.tensor import Array
from cotenant.serve.runtime.gpu.shared_tensors import (
    RunBatch,
    TensorLocation,
    TensorMemory,
    WorkerFailure,
    WorkerMessage,
    WorkerReady,
    WorkerSetup,
    receive_worker_message,
    send,
)
from cotenant.serve.runtime.model import ModelLoadError
from cotenant.units.instant import Instant

_STDERR_TAIL_BYTES: Final = 400
_TERM_S: Final = 5.0


class WorkerStart(NamedTuple):
    """Command, environment and setup of a worker."""

    command: Sequence[str]
    environ: Mapping[str, str]
    setup: WorkerSetup


class WorkerHandle:
    """One worker process, from start to end."""

    def __init__(self, start: WorkerStart, width: int) -> None:
        """Start the process; it sends `WorkerReady` when it can run."""
        self.width = width
        self.ready: WorkerReady | None = None
        self.idle_since: Instant = monotonic_ns()
        self.inputs_memory = TensorMemory()
        self._outputs_memory = TensorMemory()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = ours
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        try:
            self.process = subprocess.Popen(
                list(start.command),
                env=dict(start.environ),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C in a terminal is for the server, which then drains
            )
        except OSError:
            ours.close()
            self._stderr.close()
            raise
        finally:
            theirs.close()
        self.pidfd = os.pidfd_open(self.process.pid)
        with contextlib.suppress(OSError):  # a process that is already dead is detected by its end
            send(ours, start.setup)

    def await_ready(self, patience_s: float) -> WorkerReady:
        """Wait until the worker is ready; raise `ModelLoadError` if it fails."""
        self.channel.settimeout(patience_s)
        try:
            message = self.receive()
        except TimeoutError:
            self.kill()
            raise ModelLoadError(f"its worker was not ready within {patience_s:g} s") from None
        if isinstance(message, WorkerReady):
            self.channel.setblocking(False)
            return message
        self.end()
        reason = message.why if isinstance(message, WorkerFailure) else self.describe_end()
        self.close()
        raise ModelLoadError(f"its worker cannot run it: {reason}")

    def receive(self) -> WorkerMessage | None:
        """Receive a message; None if the worker is gone."""
        message = receive_worker_message(self.channel, self._outputs_memory)
        if isinstance(message, WorkerReady):
            self.ready = message
            with contextlib.suppress(OSError):
                if message.pid != self.process.pid:  # started by another process: watch the worker itself
                    os.close(self.pidfd)
                    self.pidfd = -1
                    self.pidfd = os.pidfd_open(message.pid)
        return message

    def send_batch(self, batch: RunBatch, descriptor: int) -> None:
        """Send a batch to run."""
        send(self.channel, batch, descriptor)

    def tensor(self, location: TensorLocation) -> Array:
        """Return a copy of an output tensor; its memory will be overwritten."""
        return self._outputs_memory.tensor(location).copy()

    def describe_end(self) -> str:
        """Describe how the process ended, if known, with the last line of its error output."""
        code = self.process.poll()
        ending = "its process is gone" if code is None else describe_exit(code if code >= 0 else 128 - code)
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _STDERR_TAIL_BYTES))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"{ending}: {lines[-1]}" if lines else ending

    def kill(self) -> None:
        """Kill the worker at once, and the `cotenant run` that started it."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.process.kill()

    def disconnect(self) -> None:
        """Close the connection, so that the worker ends."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Disconnect and wait for the end; kill the worker after a timeout."""
        self.disconnect()
        try:
            self.process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()

    def close(self) -> None:
        """Release the resources of a process that has ended."""
        self.channel.close()
        self._stderr.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
