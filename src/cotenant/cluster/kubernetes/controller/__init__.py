"""Placement controller: the cluster state machine behind the Kubernetes API."""
