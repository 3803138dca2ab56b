"""What does the node see of its devices and tenants by itself? Nobody has to tell it: it looks."""
