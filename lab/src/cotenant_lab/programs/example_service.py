"""An inference service over HTTP that computes on the first GPU: `python3 serve.py [PORT] [KERNELS] [KERNEL_US]`.

A request (`GET /infer`) launches kernels and waits for them, as a model does. `GET /healthz` answers without the GPU.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from cotenant_lab.programs.client import CudaClient, CudaError

PORT: Final = 8000
KERNELS: Final = 20
KERNEL_US: Final = 150
BLOCKS: Final = 80
MEMORY_BYTES: Final = 512 << 20


class Model:
    """Kernels on the GPU; one request at a time."""

    def __init__(self, kernels: int, kernel_us: int) -> None:
        """Load the model: create a context and allocate what weights would need."""
        self._client = CudaClient()
        self._client.allocate(MEMORY_BYTES)
        self._kernels, self._kernel_ns = kernels, kernel_us * 1000
        self._lock = threading.Lock()

    def infer(self) -> None:
        """Run the model once."""
        with self._lock:
            self._client.use_in_thread()
            for _ in range(self._kernels):
                self._client.launch(self._kernel_ns, BLOCKS)
            self._client.wait()


def handler_of(model: Model) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests with this model."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            """Answer one request."""
            try:
                if self.path == "/infer":
                    model.infer()
                self._answer(200 if self.path in {"/infer", "/healthz"} else 404, b"ok\n")
            except CudaError as error:
                self._answer(500, f"{error}\n".encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Log no requests."""

    return Handler


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM."""
    port, kernels, kernel_us = (*map(int, arguments), *(PORT, KERNELS, KERNEL_US)[len(arguments) :])
    model = Model(kernels, kernel_us)
    model.infer()
    server = ThreadingHTTPServer(("0.0.0.0", port), handler_of(model))  # noqa: S104 - of a container
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving at port {port}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
