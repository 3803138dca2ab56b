"""The demo: a service and a training job on one GPU, and a node that is killed and restarted."""
