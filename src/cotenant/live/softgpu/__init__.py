"""Which soft GPUs are there, and how does a program get one?"""
