"""Recordings of a running machine: launches, device operations and requests, as timelines."""
