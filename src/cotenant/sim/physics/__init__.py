"""What must a workload look like, so that the device model shows what was measured of it?"""
