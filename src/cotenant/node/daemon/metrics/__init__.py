"""The node's metrics and the HTTP server that exposes them."""
