"""Study `dstack`: many models served from one GPU under each sharing mode."""
