"""What do programs look like that serve, train and misbehave for hours? Ordinary clients of libcuda, for the benches."""
