"""Simulated runs of a node, of kernel streams and of a cluster, and the replay of journals."""
