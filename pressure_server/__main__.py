"""`python -m pressure_server` is `pressure-server`."""

from pressure_server.app.cli import run

if __name__ == "__main__":
    run()
