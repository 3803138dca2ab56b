"""Programs of hostile offline tenants: each trains like a well-behaved tenant first, and attacks on command."""
