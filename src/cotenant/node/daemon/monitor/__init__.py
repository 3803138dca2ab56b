"""The monitors of devices, ledgers, processes, request windows and diurnal profiles."""
