"""What do programs look like that serve, train and misbehave? Ordinary clients of libcuda, for the benches."""
