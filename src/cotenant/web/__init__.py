"""The web console: an HTTP server that shows a node, a cluster and an inference server to a browser."""
