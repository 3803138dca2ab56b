"""What to choose: one folder per verb, one file per policy, every choice a pure function."""
