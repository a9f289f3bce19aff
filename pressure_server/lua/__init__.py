"""The scripts that the backend runs, and the layout of their arguments and replies.

The bottom layer, beside `errors`: it imports nothing else of this project.
"""
