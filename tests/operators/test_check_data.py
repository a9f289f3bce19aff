"""`pressure-server check-data`: it finds damage anywhere; a repair leaves a prefix of the data."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pressure_server.backend.backups.data_check import PartState, check_data, repair_data
from pressure_server.backend.backups.manifest import MANIFEST, parse_manifest
from pressure_server.backend.data_directory import DataDirectory
from tests.support.programs import Server, StartServer, Valkey, embedded_client, run_command, wait_for
from tests.support.waiters import packed

MESSAGES = 120
QUEUE = "__pressure__:q"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of a stopped server: a base with messages, and an increment with others."""
    folder = tmp_path_factory.mktemp("sound")
    data = folder / "data"
    server = Server(folder / "log", "--data-dir", str(data))
    with server.client() as client, embedded_client(data) as direct:
        for number in range(MESSAGES):
            client.rpush("q", f"message {number}")
            if number == MESSAGES // 3:
                direct.bgrewriteaof()
                wait_for(lambda: (data / "appendonlydir" / "appendonly.aof.2.base.rdb").exists(), "the base")
    assert server.stop() == 0
    return data


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    """Return a copy of that directory."""
    return Path(shutil.copytree(sound, tmp_path / "data"))


def part(data: Path, kind: str) -> Path:
    (found,) = (data / "appendonlydir").glob(f"*.{kind}.*")
    return found


def messages(data: Path, folder: Path) -> list[bytes]:
    """Return the messages that Valkey finds in the directory, without changing it."""
    shutil.copytree(data / "appendonlydir", folder / "appendonlydir")
    valkey = Valkey(folder, "--appendonly", "yes", "--aof-load-truncated", "no")
    try:
        with valkey.client() as client:
            return list(reversed(client.lrange(QUEUE, 0, -1)))
    finally:
        valkey.kill()


def is_sound(parts: list[PartState]) -> bool:
    return not any(part.problem for part in parts)


def is_prefix(found: list[bytes]) -> bool:
    return found == [b"message %d" % number for number in range(len(found))]


def repaired(data: Path) -> Path:
    """Repair the data. Return the folder with the former data."""
    directory = DataDirectory(data)
    parts = check_data(directory)
    assert not is_sound(parts)
    aside = repair_data(directory, parts)
    assert is_sound(check_data(directory))
    return aside


def test_sound_data_are_sound(data: Path) -> None:
    before = {path: path.read_bytes() for path in (data / "appendonlydir").iterdir()}
    ran = run_command("check-data", "--data-dir", str(data), "--repair")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith(f"the data in {data} are sound\n")
    assert {path: path.read_bytes() for path in (data / "appendonlydir").iterdir()} == before
    assert not list(data.glob("before-*"))


def cuts(size: int) -> Iterator[int]:
    source = random.Random(2)
    yield from (1, 2, size - 1, size - 2)
    yield from (source.randrange(3, size - 2) for _ in range(16))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_after_a_repair_valkey_starts_with_a_prefix_of_the_data(
    damage: str, sound: Path, tmp_path: Path
) -> None:
    content = part(sound, "incr").read_bytes()
    for cut in cuts(len(content)):
        folder = tmp_path / str(cut)
        data = Path(shutil.copytree(sound, folder / "data"))
        # Zeros after a power failure: the file system knew the size, and had not written the blocks.
        damaged = content[:cut] + (bytes(len(content) - cut) if damage == "zeros" else b"")
        part(data, "incr").write_bytes(damaged)
        if is_sound(check_data(DataDirectory(data))):
            assert damage == "cut"  # exactly after a command
        else:
            aside = repaired(data)
            # The former files stay as they were.
            assert part(aside, "incr").read_bytes() == damaged
            assert part(aside, "base").read_bytes() == part(sound, "base").read_bytes()
        found = messages(data, folder)
        assert is_prefix(found)
        assert MESSAGES // 3 <= len(found) <= MESSAGES
        shutil.rmtree(folder)


def test_the_command_says_what_is_damaged_and_repairs_it(data: Path, start_server: StartServer) -> None:
    content = part(data, "incr").read_bytes()
    part(data, "incr").write_bytes(content[:-5])
    ran = run_command("check-data", "--data-dir", str(data))
    assert ran.returncode == 1
    assert "appendonly.aof.2.base.rdb: " in ran.stdout
    assert "damaged after byte" in ran.stdout
    assert "--repair would cut off the last" in ran.stdout
    assert part(data, "incr").read_bytes() == content[:-5]
    ran = run_command("check-data", "--data-dir", str(data), "--repair")
    assert (ran.returncode, ran.stderr) == (0, "")
    (aside,) = data.glob("before-repair-*")
    assert f"the former files are in {aside}" in ran.stdout
    with start_server("--data-dir", str(data)).client() as client:
        assert client.scard("q") in (MESSAGES - 1, MESSAGES)
        client.sadd("q", "new")
    assert part(aside, "incr").read_bytes() == content[:-5]


@pytest.mark.parametrize("place", [0, 20, -4])
def test_a_damaged_base_cannot_be_repaired(place: int, data: Path) -> None:
    content = bytearray(part(data, "base").read_bytes())
    content[place] ^= 0xFF
    part(data, "base").write_bytes(content)
    ran = run_command("check-data", "--data-dir", str(data), "--repair")
    assert ran.returncode == 1
    assert "appendonly.aof.2.base.rdb: " in ran.stdout
    assert "cannot be repaired" in ran.stdout
    assert part(data, "base").read_bytes() == content


def test_a_command_that_valkey_does_not_know_is_found(data: Path) -> None:
    """The format of the file is sound, so the tools find nothing."""
    content = part(data, "incr").read_bytes()
    part(data, "incr").write_bytes(content.replace(b"\r\nLPUSH\r\n", b"\r\nLPUXH\r\n", 1))
    damaged = part(data, "incr").read_bytes()
    assert damaged != content
    ran = run_command("check-data", "--data-dir", str(data), "--repair")
    assert ran.returncode == 1
    assert "Valkey cannot load the data (" in ran.stdout
    assert "LPUXH" in ran.stdout
    assert part(data, "incr").read_bytes() == damaged
    assert not (data / "checking").exists()


def test_a_running_server_is_not_checked(data: Path, start_server: StartServer) -> None:
    start_server("--data-dir", str(data))
    ran = run_command("check-data", "--data-dir", str(data))
    assert ran.returncode == 2
    assert "is in use by pressure-server" in ran.stderr


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "is missing"),
        (b"", "names no file"),
        (b"file ../../x seq 1 type b\n", "is damaged"),
        (b"\x00" * 88, "is damaged"),
    ],
)
def test_a_damaged_manifest_is_reported(content: bytes | None, complaint: str, data: Path) -> None:
    manifest = data / "appendonlydir" / MANIFEST
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    ran = run_command("check-data", "--data-dir", str(data), "--repair")
    assert ran.returncode == 1
    assert complaint in ran.stdout
    assert "restore a backup" in ran.stdout
    assert run_command("backup", "--data-dir", str(data), str(data / "file")).returncode == 1


def add_increments(data: Path) -> list[Path]:
    """Add two increments, as after two rewrites that failed."""
    added = []
    for number in (3, 4):
        added.append(data / "appendonlydir" / f"appendonly.aof.{number}.incr.aof")
        first = MESSAGES + 20 * (number - 3)
        puts = [packed("LPUSH", QUEUE, f"message {number}") for number in range(first, first + 20)]
        added[-1].write_bytes(b"".join(puts))
        with (data / "appendonlydir" / MANIFEST).open("a") as manifest:
            manifest.write(f"file {added[-1].name} seq {number} type i\n")
    return added


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "zeros", "missing", "emptied by zeros"])
def test_nothing_after_a_damaged_part_is_used(damage: str, data: Path, tmp_path: Path) -> None:
    first = part(data, "incr")
    second, third = add_increments(data)
    assert is_sound(check_data(DataDirectory(data)))
    content, kept = second.read_bytes(), first.read_bytes()
    if damage == "missing":
        second.unlink()
    elif damage == "cut":
        second.write_bytes(content[:-7])
    else:
        second.write_bytes(content[: len(content) // 2 if damage == "zeros" else 0] + bytes(50))
    aside = repaired(data)
    assert not third.exists()
    (tmp_path / "found").mkdir()
    found = messages(data, tmp_path / "found")
    assert is_prefix(found)
    assert MESSAGES <= len(found) < MESSAGES + 20
    # Valkey appends to the part that is the last one now, which must not change the one that was kept.
    last = list(parse_manifest((data / "appendonlydir" / MANIFEST).read_bytes()))[-1]
    with (data / "appendonlydir" / last).open("ab") as file:
        file.write(b"more")
    assert (aside / "appendonlydir" / first.name).read_bytes() == kept
    assert damage == "missing" or (aside / "appendonlydir" / second.name).exists()
    assert (aside / "appendonlydir" / third.name).exists()
