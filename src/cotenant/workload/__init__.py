"""Launch streams, arrival processes, and the program that replays them."""
