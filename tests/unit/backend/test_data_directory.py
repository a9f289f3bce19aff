"""The files of a data directory: their modes, and links that lead elsewhere."""

import stat
from pathlib import Path

import pytest

from pressure_server.backend.data_directory import DataDirectory, DataError


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path / "data")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of somebody else."""
    path = tmp_path / "secret"
    path.write_text("secret")
    return path


def test_only_the_owner_may_read_the_lock(data: DataDirectory) -> None:
    with data.lock():
        lock = data.path / "server.lock"
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        assert stat.S_IMODE(data.path.stat().st_mode) == 0o700


def test_a_lock_that_is_a_link_is_not_followed(data: DataDirectory, secret: Path) -> None:
    data.path.mkdir()
    (data.path / "server.lock").symlink_to(secret)
    with pytest.raises(
        DataError,
        match=r"cannot use the data directory .*; delete its server\.lock, which must not be a link",
    ):
        data.lock()
    assert secret.read_text() == "secret"


def test_a_probe_that_is_a_link_is_not_followed(data: DataDirectory, secret: Path) -> None:
    data.path.mkdir()
    (data.path / "probe").symlink_to(secret)
    assert data.why_not_writable() == ""
    assert secret.read_text() == "secret"
    assert list(data.path.iterdir()) == []


@pytest.mark.parametrize(("mode", "is_open"), [(0o700, False), (0o770, False), (0o755, True), (0o701, True)])
def test_a_directory_that_lets_all_users_in_causes_a_warning(
    data: DataDirectory, caplog: pytest.LogCaptureFixture, mode: int, is_open: bool
) -> None:
    data.path.mkdir()
    data.path.chmod(mode)
    data.warn_if_open_to_others()
    assert (f"is open to all users (mode {mode:o})" in caplog.text) == is_open
