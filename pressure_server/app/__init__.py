"""The application, which no other package imports: command line, settings, start, drain, stop and logs."""
