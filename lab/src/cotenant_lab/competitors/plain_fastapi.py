"""A plain FastAPI endpoint that echoes the body of a request."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI, Request, Response

app = FastAPI()


@app.post("/v2/models/{name}/infer")
async def infer(name: str, request: Request) -> Response:
    """Return the body of the request."""
    del name
    return Response(await request.body(), media_type="application/octet-stream")


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
