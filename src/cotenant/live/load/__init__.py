"""How is a server put under load? Generators that spend as little as they can, so that the server is what is measured."""
