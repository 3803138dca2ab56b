"""Who remembers? Pure state machines that compose the verbs of policy/."""
