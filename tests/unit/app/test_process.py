"""The limits of the process, as its control groups say them."""

from pathlib import Path

import pytest

from pressure_server.app.process import memory_limit, processors

MB = 1 << 20


def _write(folder: Path, files: dict[str, str], own: str) -> None:
    for name, text in files.items():
        (folder / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "groups" / name).write_text(text)
    (folder / "own").write_text(own)


@pytest.mark.parametrize(
    ("files", "own", "found"),
    [
        ({}, "", None),
        ({"memory.max": "max\n"}, "0::/\n", None),
        ({"memory.max": "1048576\n"}, "0::/\n", 1048576),
        ({"a/memory.max": "2097152\n", "a/b/memory.max": "max"}, "0::/a/b\n", 2097152),
        ({"memory/memory.limit_in_bytes": "3145728\n"}, "7:memory:/\n", 3145728),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "", None),
    ],
)
def test_a_container_s_memory_limit_is_found(
    tmp_path: Path, files: dict[str, str], own: str, found: int | None
) -> None:
    _write(tmp_path, files, own)
    whole = memory_limit(tmp_path / "none", tmp_path / "none")
    assert whole > 64 * MB
    assert memory_limit(tmp_path / "groups", tmp_path / "own") == (found or whole)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"a/cpu.max": "max 100000\n", "cpu.max": "10000 100000\n"}, 1),
        ({"a/cpu.max": "100000000 100000\n"}, None),
    ],
)
def test_a_container_s_share_of_the_processors_is_found(
    tmp_path: Path, files: dict[str, str], found: int | None
) -> None:
    _write(tmp_path, files, "0::/a\n")
    whole = processors(tmp_path / "none", tmp_path / "none")
    assert whole >= 1
    assert processors(tmp_path / "groups", tmp_path / "own") == (found or whole)
