"""One round of nvitop's Prometheus exporter, unmodified, as it would be scraped."""

from __future__ import annotations

import sys

from nvitop import Device
from nvitop_exporter.exporter import PrometheusExporter
from prometheus_client import CollectorRegistry, generate_latest

registry = CollectorRegistry()
exporter = PrometheusExporter(Device.all(), registry=registry, hostname="here")
exporter.update_host()
for device in Device.all():
    exporter.update_device(device)
sys.stdout.write(generate_latest(registry).decode())
