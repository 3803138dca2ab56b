"""Do online kernels wait for offline ones, and do offline ones fill the gaps? Pairs of real kernel streams, measured."""
