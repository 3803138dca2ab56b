"""The hook: how it is loaded into a program, and the records that it writes."""
