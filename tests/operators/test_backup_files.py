"""The file of a backup: damaged, foreign, newer and malicious ones are refused, and write nothing outside."""

import functools
import gzip
import hashlib
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pressure_server.backend.backups.archive import read_archive, restore, write_archive
from pressure_server.backend.backups.data_snapshot import OpenPart
from pressure_server.backend.data_directory import DataDirectory, DataError
from pressure_server.backend.valkey_program import program_version
from tests.support.programs import run_command

FILES = {
    "appendonly.aof.manifest": b"file appendonly.aof.1.base.rdb seq 1 type b\n",
    "appendonly.aof.1.base.rdb": b"VALKEY080" + bytes(range(200)),
    "appendonly.aof.1.incr.aof": b"*1\r\n$4\r\nPING\r\n" * 80,
}


def good_backup() -> bytes:
    parts = [OpenPart(name, io.BytesIO(content), len(content)) for name, content in FILES.items()]
    target = io.BytesIO()
    write_archive(target, parts, "9.1.2")
    return target.getvalue()


GOOD = good_backup()
DAMAGED = GOOD.replace(b"PING", b"PUNG", 1)


def changed(number: int, **attributes: Any) -> bytes:
    """Return the backup with changes to the header of one member, and correct checksums."""
    target, sums = io.BytesIO(), ""
    with tarfile.open(fileobj=io.BytesIO(GOOD)) as source, tarfile.open(fileobj=target, mode="w") as tar:
        for position, member in enumerate(source.getmembers()):
            content = getattr(source.extractfile(member), "read", bytes)()
            if position == number:
                content = attributes.pop("content", content)
                member.size = len(content)
                for name, value in attributes.items():
                    setattr(member, name, value)
            if member.name == "SHA256SUMS":
                content = sums.encode()
                member.size = len(content)
            sums += f"{hashlib.sha256(content).hexdigest()}  {member.name}\n"
            tar.addfile(member, io.BytesIO(content))
    return target.getvalue()


def described(**changes: Any) -> bytes:
    """Return the backup with a changed description."""
    with tarfile.open(fileobj=io.BytesIO(GOOD)) as tar:
        content = getattr(tar.extractfile("backup.json"), "read", bytes)()
    return changed(0, content=json.dumps({**json.loads(content), **changes}).encode())


def refusal(backup: bytes, folder: Path | None = None) -> str:
    with pytest.raises(DataError) as refused:
        read_archive(io.BytesIO(backup), folder)
    return str(refused.value)


@pytest.fixture(autouse=True)
def version_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start Valkey for its version once, and not for each of a thousand backups that are read."""
    once = functools.cache(program_version)
    monkeypatch.setattr("pressure_server.backend.backups.archive.program_version", once)


@pytest.mark.parametrize("backup", [GOOD, changed(9)], ids=["ours", "of another tar"])
def test_a_backup_is_read_as_it_was_written(backup: bytes, tmp_path: Path) -> None:
    description = read_archive(io.BytesIO(backup), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == FILES
    assert description.size == sum(map(len, FILES.values()))


def test_a_backup_that_is_cut_anywhere_is_refused() -> None:
    end = len(GOOD.rstrip(b"\0"))
    for length in [*range(0, end, 97), *range(end - 600, end)]:
        refusal(GOOD[:length])


def test_a_changed_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    source = random.Random(1)
    size = len(GOOD.rstrip(b"\0"))
    refused = 0
    for number in range(1500):
        backup = bytearray(GOOD)
        backup[source.randrange(size)] ^= 1 << source.randrange(8)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            read_archive(io.BytesIO(bytes(backup)), folder)
        except DataError:
            refused += 1
        else:
            # Padding has no meaning.
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert refused > 700


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 5000, bytes(5000), gzip.compress(GOOD), b"REDIS0011" * 100, changed(0, name="file")],
    ids=["empty", "text", "zeros", "gzip", "rdb", "other tar"],
)
def test_a_foreign_file_is_refused(content: bytes) -> None:
    assert refusal(content).startswith("this is not a backup of pressure-server, or it is damaged: ")


@pytest.mark.parametrize(
    ("backup", "complaint"),
    [
        (changed(2, name="../evil"), "it has a file ../evil"),
        (changed(2, name="appendonlydir/../evil"), "it has a file appendonlydir/../evil"),
        (changed(2, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "other members than files"),
        (changed(2, type=tarfile.CHRTYPE), "other members than files"),
        (described(size=10**30), "has room for"),
        (described(files=None), "description cannot be read"),
        (changed(0, content=b"[]"), "description cannot be read"),
        (described(server_version="99.0"), "made by pressure-server 99.0, and this is "),
        (described(valkey_version="9.2.0"), "made by Valkey 9.2.0, and this is 9.1"),
    ],
)
def test_a_malicious_or_newer_file_is_refused(backup: bytes, complaint: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert complaint in refusal(backup, folder)
    assert {path.name for path in tmp_path.iterdir()} == {"folder"}
    assert {path.name for path in folder.iterdir()} <= set(FILES)


@pytest.mark.parametrize("version", ["9.1.99", "8.0.0", "9.0"])
def test_a_backup_of_the_same_or_an_older_valkey_is_accepted(version: str) -> None:
    assert read_archive(io.BytesIO(described(valkey_version=version))).valkey_version == version


def test_a_refused_backup_leaves_a_data_directory_as_it_was(tmp_path: Path) -> None:
    new = tmp_path / "new"
    with pytest.raises(DataError):
        restore(io.BytesIO(DAMAGED), DataDirectory(new), replace=False)
    assert not new.exists()
    used = tmp_path / "used"
    (used / "appendonlydir").mkdir(parents=True)
    (used / "appendonlydir" / "file").write_text("data")
    with pytest.raises(DataError):
        restore(io.BytesIO(DAMAGED), DataDirectory(used), replace=True)
    assert {path.name for path in used.iterdir()} == {"appendonlydir", "server.lock"}
    assert (used / "appendonlydir" / "file").read_text() == "data"


def test_check_data_reports_a_damaged_backup(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    file.write_bytes(DAMAGED)
    checked = run_command("check-data", str(file))
    assert (checked.returncode, checked.stderr) == (1, "")
    assert "the backup is damaged" in checked.stdout
