"""Repair: finds the problems that dead native clients have left in queues, and fixes them."""
