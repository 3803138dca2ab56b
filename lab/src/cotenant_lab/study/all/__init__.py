"""Study `all`: results of four studies next to the claims of their papers."""
