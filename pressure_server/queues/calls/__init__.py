"""Calls: a lane has the operations on one queue, and the courier packs those of all lanes into calls.

Lanes are pure; what they ask of their surroundings is in `driver.py`.
"""
