"""What do other people's measurements say? One reader per published data set, bytes to values."""
