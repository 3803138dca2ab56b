"""How is a server put under load? By generators that spend little themselves, and beside servers that do little."""
