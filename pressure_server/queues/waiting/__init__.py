"""Waiting: operations that lack something, what wakes them, and roles that native clients hold."""
