"""Run the command `pressure-server` as `python -m pressure_server`."""

from pressure_server.app.cli import run

if __name__ == "__main__":
    run()
