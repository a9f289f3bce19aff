"""The matrix of waits: each event that ends a wait, with each command that waits, at each moment.

`python -m tests.waiting.matrix --full` runs all cells; test_matrix.py runs a sample. The tables are in
puts.py, jobs.py, endings.py, room.py, waiters.py and questions.py: a new event, waiter or question is one
line there.
"""
