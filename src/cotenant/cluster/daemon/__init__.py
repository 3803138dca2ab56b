"""The live cluster controller, its certificates and journal, and the clients of nodes and users."""
