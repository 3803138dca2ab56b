"""Bench `server`: requests per second and CPU time of our server, compared with plain servers."""
