"""Live and simulated ports of the server end every run once and every request once."""

import asyncio
from typing import Any

import numpy as np
import pytest

from cotenant.api import Model
from cotenant.runner.sim_loop import SimLoop
from cotenant.serve.frontend.engine import Engine
from cotenant.serve.model.event import DrainRequested, ModelReady, ModelSpec, ModelWithdrawn, RequestArrived
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.serve.protocol.oip.infer import InferError, InferRequest, RequestInput
from cotenant.serve.runtime.python import PythonModel
from cotenant.serve.runtime.runtime import CpuRuntime
from cotenant.serve.sim.server import FixedTimeDevice, SimServer
from cotenant.serve.state.server import ServerMachine, ServerSettings

pytestmark = pytest.mark.live

SPEC = ModelSpec(
    "m", "1", "test", (TensorSpec("X", Datatype.FP32, (-1, 1)),), (TensorSpec("X", Datatype.FP32, (-1, 1)),), 4
)
SETTINGS = ServerSettings(units=1, requests_limit=6)


def simulated_responses(requests: int) -> list[str]:
    loop = SimLoop()
    sim_server = SimServer(loop, ServerMachine(SETTINGS), FixedTimeDevice(loop, lambda run: 1000 + run.rows))
    sim_server.at(0, ModelReady(SPEC, 1))
    for number in range(1, requests + 1):
        sim_server.at(1, RequestArrived(number, "m", 1, 0))
    sim_server.at(2, ModelWithdrawn("m"))
    sim_server.at(3, DrainRequested())
    loop.run(10**9)
    assert sim_server.drained_at is not None
    assert sim_server.released == [("m", 1)]
    responses = {
        **dict.fromkeys(sim_server.answered, "ok"),
        **{number: rejection.why.value for number, rejection in sim_server.refused.items()},
    }
    assert len(responses) == len(sim_server.answered) + len(sim_server.refused)
    return [responses[number] for number in sorted(responses)]


class RecordedReply:
    """A reply that is only recorded."""

    streams = False

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def send_response(self, request: InferRequest, spec: ModelSpec, outputs: list[Any]) -> None:
        self.outcomes.append("ok")

    def send_error(self, error: InferError) -> None:
        self.outcomes.append({"exhausted": "queue-full"}[error.kind])

    def end(self) -> None:
        self.outcomes.append("over")


def live_responses(requests: int, inline: bool) -> list[str]:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        engine = Engine(SETTINGS, CpuRuntime((0,)), loop)
        drained = asyncio.Event()
        model = Model(
            lambda tensors: {"X": tensors["X"]},
            name="m",
            inputs={"X": ("FP32", (1,))},
            outputs={"X": ("FP32", (1,))},
            inline=inline,
        )
        engine.serve(PythonModel(SPEC, model))
        replies = [RecordedReply() for _ in range(requests)]
        row = RequestInput("X", "FP32", (1, 1), np.zeros((1, 1), np.float32).tobytes())
        for reply in replies:
            engine.submit(InferRequest("m", "", "", (row,), ()), reply)
        engine.withdraw("m")
        engine.drain(drained.set)
        await asyncio.wait_for(drained.wait(), 60)
        await asyncio.sleep(0)
        engine.close()
        assert engine._held_bytes == 0
        assert not engine._models
        assert not engine._pending
        return [" ".join(reply.outcomes) for reply in replies]

    return asyncio.run(main())


@pytest.mark.parametrize("requests", [1, 5, 7])
def test_each_request_is_answered_once(requests: int) -> None:
    """The first request runs and six may be queued, so none of seven is rejected."""
    assert simulated_responses(requests) == ["ok"] * requests
    assert live_responses(requests, inline=True) == ["ok"] * requests
    assert live_responses(requests, inline=False) == ["ok"] * requests


def test_request_beyond_the_queue_limit_is_rejected() -> None:
    assert simulated_responses(9) == ["ok"] * 7 + ["queue-full"] * 2
    assert live_responses(9, inline=False) == ["ok"] * 7 + ["queue-full"] * 2
