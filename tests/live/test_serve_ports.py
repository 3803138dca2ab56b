"""Do both sides of a server's ports end every run once, and every request once?"""

import asyncio
from typing import Any

import numpy as np
import pytest

from cotenant.domain.serving import Arrived, Draining, ModelLeaving, ModelReady, ModelSpec
from cotenant.domain.tensor import Datatype, TensorSpec
from cotenant.format.infer import GivenInput, InferError, InferRequest
from cotenant.live.serve.engine import Engine
from cotenant.live.serve.python import PythonModel
from cotenant.live.serve.runtime import CpuRuntime
from cotenant.machine.server import ServerMachine, ServerSettings
from cotenant.serve import Model
from cotenant.sim.loop import SimLoop
from cotenant.sim.serve import AsTold, SimServing

SPEC = ModelSpec(
    "m", "1", "test", (TensorSpec("X", Datatype.FP32, (-1, 1)),), (TensorSpec("X", Datatype.FP32, (-1, 1)),), 4
)
SETTINGS = ServerSettings(units=1, requests_limit=6)


def told_by_simulation(requests: int) -> list[str]:
    loop = SimLoop()
    world = SimServing(loop, ServerMachine(SETTINGS), AsTold(loop, lambda run: 1000 + run.rows))
    world.at(0, ModelReady(SPEC, 1))
    for number in range(1, requests + 1):
        world.at(1, Arrived(number, "m", 1, 0))
    world.at(2, ModelLeaving("m"))
    world.at(3, Draining())
    loop.run(10**9)
    assert world.drained_at is not None
    assert world.released == [("m", 1)]
    told = {**dict.fromkeys(world.answered, "ok"), **{number: one.why.value for number, one in world.refused.items()}}
    assert len(told) == len(world.answered) + len(world.refused)
    return [told[number] for number in sorted(told)]


class Noted:
    """A reply that is only noted."""

    streams = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def done(self, request: InferRequest, spec: ModelSpec, outputs: list[Any]) -> None:
        self.told.append("ok")

    def failed(self, error: InferError) -> None:
        self.told.append({"exhausted": "queue-full"}[error.kind])

    def over(self) -> None:
        self.told.append("over")


def told_live(requests: int, inline: bool) -> list[str]:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        engine = Engine(SETTINGS, CpuRuntime((0,)), loop)
        gate = asyncio.Event()
        model = Model(
            lambda tensors: {"X": tensors["X"]},
            name="m",
            inputs={"X": ("FP32", (1,))},
            outputs={"X": ("FP32", (1,))},
            inline=inline,
        )
        engine.serve(PythonModel(SPEC, model))
        replies = [Noted() for _ in range(requests)]
        row = GivenInput("X", "FP32", (1, 1), np.zeros((1, 1), np.float32).tobytes())
        for reply in replies:
            engine.submit(InferRequest("m", "", "", (row,), ()), reply)
        engine.withdraw("m")
        engine.drain(gate.set)
        await asyncio.wait_for(gate.wait(), 60)
        await asyncio.sleep(0)
        engine.close()
        assert engine._held_bytes == 0
        assert not engine._models
        assert not engine._pending
        return [" ".join(reply.told) for reply in replies]

    return asyncio.run(main())


@pytest.mark.parametrize("requests", [1, 5, 7])
def test_each_request_is_told_once_whoever_runs_it(requests: int) -> None:
    """The first runs at once and six may wait, so none of seven is refused; a thread may be quicker than the loop."""
    assert told_by_simulation(requests) == ["ok"] * requests
    assert told_live(requests, inline=True) == ["ok"] * requests
    assert told_live(requests, inline=False) == ["ok"] * requests


def test_what_no_queue_holds_is_refused() -> None:
    assert told_by_simulation(9) == ["ok"] * 7 + ["queue-full"] * 2
    assert told_live(9, inline=False) == ["ok"] * 7 + ["queue-full"] * 2
