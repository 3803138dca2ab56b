"""The configuration file: one section per topic, one flag per field."""
