"""A model of the backend and of time: the core runs in it, in the interleaving that a seed chooses."""
