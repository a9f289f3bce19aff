"""The workers of a server with --workers, and their supervisor's part."""
