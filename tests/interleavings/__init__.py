"""A model of the backend and of time, in which lanes and the courier run in the order that a seed chooses."""
