"""Backup, restore, check and repair of the files of an embedded backend."""
