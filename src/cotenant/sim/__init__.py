"""The simulated world: a clock that is a heap, doubles for every port, and the people who come and go."""
