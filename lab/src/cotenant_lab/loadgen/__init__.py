"""Load generators that run in their own process."""
