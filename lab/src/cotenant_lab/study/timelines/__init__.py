"""Study `timelines`: recorded timelines replayed on a software GPU, and what the hook measures of them."""
