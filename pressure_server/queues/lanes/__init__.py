"""Lanes: the operations on one queue in their order, and its part of the calls.

A lane is pure; what it asks of its surroundings is the driver of `calls`.
"""
