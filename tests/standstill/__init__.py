"""No command stands still: the worst that one client's command does to the others, for each RESP command.

`python -m tests.standstill` sends every command of the table with the most words, names and messages, and
with the longest patterns that the limits let through. Meanwhile other clients ask PING, put and take. It
prints how long these waited, and what memory the server took. It is no test of the suite: what is measured
depends on the machine. test_standstill.py tests that it knows all commands, with small requests.
"""
