"""Who runs when? For now: the terms pages that the gate reads."""
