"""How much of a device may each have?"""
