"""Adapters between the placement of jobs and the Kubernetes API: kubelet plugin, controller and admission webhook."""
