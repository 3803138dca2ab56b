"""Wire protocols of the server, without I/O: HTTP/1.1, HTTP/2, gRPC, Open Inference Protocol, Triton config."""
