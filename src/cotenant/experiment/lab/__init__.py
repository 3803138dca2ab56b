"""What does cotenant claim about the world, and what do measurements of the world say to it?"""
