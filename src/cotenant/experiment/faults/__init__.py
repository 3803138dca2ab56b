"""What becomes of an online tenant when something goes wrong beside it, twenty times each?"""
