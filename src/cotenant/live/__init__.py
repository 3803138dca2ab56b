"""The real world: one module per thing touched."""
