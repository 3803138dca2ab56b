"""A page in a browser that needs nothing beside itself."""
