"""How does the node show itself to those who look: a log, a journal to read along, figures over HTTP?"""
