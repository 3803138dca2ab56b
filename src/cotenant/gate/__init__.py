"""Launch admission: rules, page layouts, the files that tenants map, and a simulated counterpart."""
