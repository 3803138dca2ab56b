"""Live runs of several programs on one software GPU, used by the demo and by benches."""
