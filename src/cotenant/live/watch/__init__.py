"""How are the devices and the tenants on them doing, and what is done to them when it must be?"""
