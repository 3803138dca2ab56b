"""Study `muxflow`: a cluster before and after sharing, under each placement policy."""
