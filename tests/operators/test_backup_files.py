"""The file of a backup: damaged, foreign, newer and malicious ones are refused, and write nothing outside."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pressure_server import __version__
from pressure_server.backend.backups.archive import Description, read_archive, write_archive
from pressure_server.backend.backups.data_snapshot import DataSnapshot, OpenPart
from pressure_server.backend.backups.files import DataError
from pressure_server.backend.backups.manifest import Manifest
from pressure_server.backend.backups.restore import restore
from pressure_server.backend.data_directory import DataDirectory
from pressure_server.backend.valkey_program import program_version
from tests.support.programs import run_command

BASE, INCREMENT = "appendonly.aof.1.base.rdb", "appendonly.aof.1.incr.aof"
FOLDER = "appendonlydir/"
CONTENT = {BASE: b"VALKEY080" + bytes(range(200)), INCREMENT: b"*1\r\n$4\r\nPING\r\n" * 80}


def good_backup() -> bytes:
    names = tuple(CONTENT)
    lines = (f"file {BASE} seq 1 type b", f"file {INCREMENT} seq 1 type i")
    parts = tuple(OpenPart(name, io.BytesIO(content), len(content)) for name, content in CONTENT.items())
    target = io.BytesIO()
    write_archive(target, DataSnapshot(Manifest(names, lines), parts, "9.1.2"))
    return target.getvalue()


GOOD = good_backup()


def members(backup: bytes = GOOD) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(backup)) as tar:
        return [(member, getattr(tar.extractfile(member), "read", bytes)()) for member in tar.getmembers()]


def packed(parts: list[tuple[tarfile.TarInfo, bytes]], *, correct: bool = True) -> bytes:
    """Return a tar of these members. With `correct`, its checksums are right."""
    target = io.BytesIO()
    sums = ""
    for header, content in parts:
        if header.name == "SHA256SUMS" and correct:
            content = sums.encode()
            header.size = len(content)
        sums += f"{hashlib.sha256(content).hexdigest()}  {header.name}\n"
        target.write(header.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
    return target.getvalue() + bytes(1024)


def described(**changes: Any) -> bytes:
    """Return the backup with a changed description."""
    parts = members()
    header, content = parts[0]
    content = json.dumps({**json.loads(content), **changes}).encode()
    header.size = len(content)
    return packed([(header, content), *parts[1:]])


def changed(number: int, **attributes: Any) -> bytes:
    """Return the backup with changes to the header of one member."""
    parts = members()
    for name, value in attributes.items():
        setattr(parts[number][0], name, value)
    return packed(parts)


def files(*named: tuple[Any, Any]) -> bytes:
    return described(files=[{"name": name, "size": size} for name, size in named])


def refusal(backup: bytes, folder: Path) -> str:
    with pytest.raises(DataError) as refused:
        read_archive(io.BytesIO(backup), folder)
    return str(refused.value)


def test_a_backup_is_read_as_it_was_written(tmp_path: Path) -> None:
    description = read_archive(io.BytesIO(GOOD), tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in CONTENT} == CONTENT
    assert description.size == sum(file.size for file in description.files)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())
    assert packed(members()) == GOOD


@pytest.fixture
def version_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start Valkey for its version once, and not for each of a thousand backups that are read."""
    once = functools.cache(program_version)
    monkeypatch.setattr("pressure_server.backend.backups.archive.program_version", once)


@pytest.mark.usefixtures("version_is_asked_once")
def test_a_backup_that_is_cut_anywhere_is_refused() -> None:
    for length in [*range(0, len(GOOD), 97), *range(len(GOOD) - 1030, len(GOOD))]:
        with pytest.raises(DataError):
            read_archive(io.BytesIO(GOOD[:length]))


@pytest.mark.usefixtures("version_is_asked_once")
def test_a_changed_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    expected = read_archive(io.BytesIO(GOOD))
    source = random.Random(1)
    accepted = 0
    for number in range(1500):
        backup = bytearray(GOOD)
        backup[source.randrange(len(GOOD))] ^= 1 << source.randrange(8)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            found = read_archive(io.BytesIO(bytes(backup)), folder)
        except DataError:
            continue
        # The spaces around the checksum of a header have no meaning.
        accepted += 1
        assert found == expected
        assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert accepted < 15


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 5000, bytes(5000), gzip.compress(GOOD), b"REDIS0011" * 100, packed(members()[1:])],
    ids=["empty", "text", "zeros", "gzip", "rdb", "other tar"],
)
def test_a_foreign_file_is_refused(content: bytes, tmp_path: Path) -> None:
    assert refusal(content, tmp_path) == "this is not a backup of pressure-server"


ENTRY = (BASE, len(CONTENT[BASE])), (INCREMENT, len(CONTENT[INCREMENT]))
MANIFEST = ("appendonly.aof.manifest", 88)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: changed(2, name="../evil"), "is expected, not"),
        (lambda: changed(2, name="/etc/evil"), "is expected, not"),
        (lambda: changed(2, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is expected, not"),
        (lambda: changed(2, type=tarfile.LNKTYPE, linkname="/etc/passwd"), "is expected, not"),
        (lambda: changed(2, type=tarfile.CHRTYPE), "is expected, not"),
        (lambda: changed(2, type=tarfile.DIRTYPE), "is expected, not"),
        (lambda: changed(2, type=tarfile.GNUTYPE_SPARSE), "is expected, not"),
        (lambda: changed(2, type=tarfile.XHDTYPE, size=1 << 40), "is expected, not"),
        (lambda: changed(2, size=5), "does not have"),
        (lambda: changed(0, size=1 << 40), "backup.json has"),
        (lambda: files(MANIFEST, ("../../evil", 1)), "description is invalid"),
        (lambda: files(MANIFEST, ("appendonly.aof/../evil", 1)), "description is invalid"),
        (lambda: files(MANIFEST, ("valkey.conf", 1)), "description is invalid"),
        (lambda: files(MANIFEST, MANIFEST, *ENTRY), "description is invalid"),
        (lambda: files(MANIFEST, ENTRY[0], ENTRY[0]), "description is invalid"),
        (lambda: files(*ENTRY), "description is invalid"),
        (lambda: files(MANIFEST, (BASE, -1)), "description is invalid"),
        (lambda: files(MANIFEST, (BASE, 1.5)), "description is invalid"),
        (lambda: files(MANIFEST, (BASE, True)), "description is invalid"),
        (lambda: files(MANIFEST, (7, 1)), "cannot be read"),
        (lambda: files(MANIFEST, (BASE, 10**30)), "has room for"),
        (lambda: files(MANIFEST, ENTRY[0]), "SHA256SUMS is expected"),
        (lambda: described(format="1"), "cannot be read"),
        (lambda: described(format=0), "description is invalid"),
        (lambda: described(files=None), "cannot be read"),
        (lambda: described(created=5), "description is invalid"),
        (lambda: described(format=2), "has format 2 of pressure-server"),
        (
            lambda: described(server_version="99.0"),
            f"made by pressure-server 99.0, and this is {__version__}",
        ),
        (lambda: described(valkey_version="9.2.0"), "made by Valkey 9.2.0, and this is 9.1"),
        (lambda: packed([*members()[:-1], members()[2], members()[-1]]), "SHA256SUMS is expected"),
        (lambda: packed(members()[:-1]), "cut short or damaged before SHA256SUMS"),
        (lambda: packed([*members(), members()[2]]), "something follows its end"),
        (lambda: GOOD + b"x", "something follows its end"),
        (
            lambda: packed([(one, content[::-1]) for one, content in members()][1:2] + members()),
            "not a backup",
        ),
    ],
)
def test_a_malicious_file_is_refused(make: Callable[[], bytes], complaint: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert complaint in refusal(make(), folder)
    assert {path.name for path in tmp_path.iterdir()} == {"folder"}
    assert {path.name for path in folder.iterdir()} <= {*CONTENT, MANIFEST[0]}


@pytest.mark.parametrize("version", ["9.1.99", "8.0.0", "9.0"])
def test_a_backup_of_the_same_or_an_older_valkey_is_accepted(version: str) -> None:
    assert isinstance(read_archive(io.BytesIO(described(valkey_version=version))), Description)


def test_a_manifest_with_other_names_is_refused(tmp_path: Path) -> None:
    parts = members()
    parts[1] = (parts[1][0], parts[1][1].replace(b"1.incr", b"2.incr"))
    assert "are not those of its manifest" in refusal(packed(parts), tmp_path)


def test_a_deeply_nested_description_is_refused(tmp_path: Path) -> None:
    parts = members()
    content = b"[" * 500_000
    parts[0][0].size = len(content)
    assert "description cannot be read" in refusal(packed([(parts[0][0], content), *parts[1:]]), tmp_path)


def test_a_refused_backup_leaves_a_data_directory_as_it_was(tmp_path: Path) -> None:
    damaged = GOOD[:3000] + b"?" + GOOD[3001:]
    new = tmp_path / "new"
    with pytest.raises(DataError):
        restore(io.BytesIO(damaged), DataDirectory(new), replace=False)
    assert not new.exists()
    used = tmp_path / "used"
    (used / "appendonlydir").mkdir(parents=True)
    (used / "appendonlydir" / "file").write_text("data")
    with pytest.raises(DataError):
        restore(io.BytesIO(damaged), DataDirectory(used), replace=True)
    assert {path.name for path in used.iterdir()} == {"appendonlydir", "server.lock"}
    assert (used / "appendonlydir" / "file").read_text() == "data"


def test_the_command_reports_a_damaged_backup(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    file.write_bytes(GOOD[:3000] + b"?" + GOOD[3001:])
    checked = run_command("check-data", str(file))
    assert (checked.returncode, checked.stderr) == (1, "")
    assert "the backup" in checked.stdout
    restored = run_command("restore", str(file), "--data-dir", str(tmp_path / "data"))
    assert restored.returncode == 1
    assert not (tmp_path / "data").exists()
