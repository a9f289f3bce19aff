"""New files: they appear when they are complete, and an interrupt leaves none."""

import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pressure_server.backend.backups.files import new_file


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with new_file(path, replace=False) as file:
        file.write(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_no_file_even_if_it_comes_when_one_has_just_been_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def interrupted(*arguments: Any) -> NoReturn:
        os.close(opened(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "file", replace=False):
        pass
    assert not list(tmp_path.iterdir())
