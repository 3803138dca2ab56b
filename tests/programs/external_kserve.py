"""Use KServe's REST and gRPC clients; the arguments are the addresses of a server with the model `simple`."""

import asyncio
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
SECOND = np.ones((1, 16), np.int32)


def request(*, binary: bool) -> Any:
    inputs = []
    for name, values in (("INPUT0", FIRST), ("INPUT1", SECOND)):
        tensor = InferInput(name, list(values.shape), "INT32")
        tensor.set_data_from_numpy(values, binary_data=binary)
        inputs.append(tensor)
    return InferRequest(model_name="simple", infer_inputs=inputs, request_id="one")


def check(answer: Any) -> None:
    outputs = {output.name: output.as_numpy() for output in answer.outputs}
    np.testing.assert_array_equal(outputs["OUTPUT0"].reshape(1, 16), FIRST + SECOND)
    np.testing.assert_array_equal(outputs["OUTPUT1"].reshape(1, 16), FIRST - SECOND)
    assert answer.id == "one"


async def main(http: str, grpc: str) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest:
        assert await rest.is_server_live(f"http://{http}")
        assert await rest.is_server_ready(f"http://{http}")
        assert await rest.is_model_ready(f"http://{http}", "simple")
        for binary in (False, True):
            check(await rest.infer(f"http://{http}", request(binary=binary), model_name="simple"))
    async with InferenceGRPCClient(grpc) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("simple")
        for binary in (False, True):
            check(await client.infer(request(binary=binary)))


asyncio.run(main(sys.argv[1], sys.argv[2]))
