"""The state machine of the cluster controller."""
