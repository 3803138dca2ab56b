"""A grpc.aio server that echoes the bytes of a request."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc


async def _echo(message: bytes, context: Any) -> bytes:
    del context
    return message


async def _main(port: str) -> None:
    server = grpc.aio.server()
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[2:] == ["uvloop"]:
        import uvloop

        uvloop.run(_main(sys.argv[1]))
    else:
        asyncio.run(_main(sys.argv[1]))
