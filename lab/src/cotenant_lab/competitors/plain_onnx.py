"""ONNX Runtime with default settings behind a plain FastAPI endpoint.

Sessions have default settings (threads for every core, no batches), each request runs in FastAPI's thread pool, and
requests and answers are binary tensors of the Open Inference Protocol, of which only this call is implemented.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

_TYPES: Final[dict[str, Any]] = {"FP32": np.float32, "INT64": np.int64}
_LENGTH: Final = "Inference-Header-Content-Length"

app = FastAPI()
sessions: dict[str, Any] = {}


def _run(session: Any, front: bytes, tensors: bytes) -> bytes:
    feed = {}
    offset = 0
    for tensor in msgspec.json.decode(front)["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        array = np.frombuffer(
            tensors, _TYPES[tensor["datatype"]], offset=offset, count=size // _TYPES[tensor["datatype"]]().nbytes
        )
        feed[tensor["name"]] = array.reshape(tensor["shape"])
        offset += size
    (scores,) = session.run(None, feed)
    output: bytes = scores.tobytes()
    return output


@app.get("/v2/health/ready")
async def ready() -> Response:
    """Return 200; the models are loaded before the server listens."""
    return Response()


@app.post("/v2/models/{name}/infer")
async def infer(name: str, request: Request) -> Response:
    """Run one request of one model."""
    session = sessions.get(name)
    if session is None:
        raise HTTPException(404, f"no model {name!r}")
    body = await request.body()
    header_bytes = int(request.headers[_LENGTH])
    output = await run_in_threadpool(_run, session, body[:header_bytes], body[header_bytes:])
    return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    import onnxruntime

    for path in sorted(Path(sys.argv[2]).glob("*.onnx")):
        sessions[path.stem] = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
