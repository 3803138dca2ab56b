"""HTTP/2 frames (RFC 9113) and header compression (RFC 7541)."""
