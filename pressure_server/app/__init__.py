"""The application, which no other package imports: command line, settings, start, drain, stop and logs."""

from importlib.metadata import PackageNotFoundError, version


def _refuse_mixed_versions() -> None:
    """Raise ImportError if pressure-client of another version has replaced modules of this server."""
    try:
        client, server = version("pressure-client"), version("pressure-server")
    except PackageNotFoundError:
        return
    if client != server:
        raise ImportError(
            f"pressure-client {client} and pressure-server {server} have files in common: use one version of "
            f"both, or pip uninstall pressure-client && pip install --force-reinstall pressure-server"
        )


_refuse_mixed_versions()
