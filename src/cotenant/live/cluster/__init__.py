"""How do the machines of a cluster find, trust and obey each other? Sockets, certificates, processes and files."""
