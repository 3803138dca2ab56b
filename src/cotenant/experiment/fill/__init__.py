"""Do online kernels wait for offline ones, and do offline ones fill the gaps? Real kernel streams, measured."""
