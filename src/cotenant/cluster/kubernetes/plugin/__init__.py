"""The kubelet plugin: DRA driver, device plugin, CDI specs, node reports and evictions of one node."""
