"""How many requests are answered in time, whatever is offered? Servers of models, side by side under the same load."""
