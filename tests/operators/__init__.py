"""What operators use: commands, options, the console, metrics, backups, packages."""
