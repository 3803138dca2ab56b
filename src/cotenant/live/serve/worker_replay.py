"""How does a worker play a model? Its kernels go to whatever libcuda.so.1 is there; what comes out are zeros."""

from __future__ import annotations

from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.format.replay import decode_replay, played
from cotenant.live.player import Parts, hold
from cotenant.live.serve.device import Device, lost_by, own_device
from cotenant.live.serve.parcel import Do, Lies, Room, Setup, lie
from cotenant.live.serve.worker import DeviceLost


class ReplayAct:
    """A model of which only the kernels' times are known."""

    def __init__(self, setup: Setup) -> None:
        """A context, the kernels of every batch, and memory as its weights take."""
        path = Path(setup.path)
        try:
            model = decode_replay(path.read_text(encoding="utf-8"), path.name)
        except (CotenantError, OSError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from None
        script = played(model)
        self.inputs = model.inputs
        self.outputs = model.outputs
        self._parts = script.parts
        self._batches = self.means_batches = bool(model.max_batch)
        self._stage = Parts(script.script, script.image)
        if model.weights_bytes:
            hold(model.weights_bytes)

    def device(self) -> Device:
        """As the driver tells this process."""
        return own_device()

    def run(self, do: Do, given: Room, made: Room) -> tuple[int, tuple[Lies, ...], int]:
        """Play the batch's kernels; memory that nobody wrote is zeros."""
        del given
        laid, size_bytes = lie(self.outputs, do.rows)
        descriptor = made.make(size_bytes)
        first, count = self._parts[do.rows if self._batches else 1]
        try:
            return self._stage.play(first, count, do.due_ns), laid, descriptor
        except OSError as error:
            raise DeviceLost(str(error)) from None

    def check(self) -> None:
        """A fault elsewhere shows at the next call that waits."""
        code = lost_by()
        if code:
            raise DeviceLost(f"the device is lost to it (CUDA error {code})")
