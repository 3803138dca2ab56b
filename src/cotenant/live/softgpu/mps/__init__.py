"""How do processes share a soft GPU at the same time? MPS: a control daemon, its servers, and their front end."""
