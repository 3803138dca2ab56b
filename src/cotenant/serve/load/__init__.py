"""Load generator: open-loop and closed-loop clients over HTTP and gRPC."""
