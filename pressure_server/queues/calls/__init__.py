"""Calls of the batch script: the courier packs blocks, one for each queue, into calls, and keeps records."""
