"""Open Inference Protocol (https://github.com/kserve/open-inference-protocol), over HTTP and gRPC."""
