"""How does a cluster live? The brain's door, its certificates and its record; the way of nodes and users to it."""
