"""Study `placement-node`: policies that choose a GPU of a node, compared by measurements and simulation."""
