"""How much of a device do many models get served from, in every way to share it?"""
