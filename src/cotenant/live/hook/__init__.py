"""How does the hook get into a program, and what does it leave behind?"""
