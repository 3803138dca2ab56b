"""Study `muri`: a replay of a real cluster's jobs under six published policies."""
