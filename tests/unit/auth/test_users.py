"""Users, in memory: the users file, passwords, rights, queues, and the users after a reload."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pressure_server.auth.access_policy import AccessPolicy
from pressure_server.auth.users import (
    MAX_PASSWORD_BYTES,
    NOBODY,
    RIGHTS,
    User,
    Users,
    UsersError,
    parse_users,
    password_digest,
    users_with_password,
)
from pressure_server.text import Glob

HASH = hashlib.sha256(b"password").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
PASSWORDS = st.binary(min_size=1, max_size=40)


def table(name: str = "ada", **changes: str) -> str:
    """Return a user's table in TOML. `changes` has values by key; "" removes a key."""
    lines = {"password-sha256": f'"{HASH}"', "queues": '["q:*"]', "may": '["put"]'}
    lines |= {key.replace("_", "-"): value for key, value in changes.items()}
    return "\n".join([f'[users."{name}"]', *(f"{key} = {value}" for key, value in lines.items() if value)])


def test_a_users_file_defines_users_and_rights() -> None:
    users = parse_users(table(password_sha256=f'["{HASH}", "{OTHER.upper()}"]', may='["put", "get"]'))
    user = users.log_in("ada", b"other")
    assert user is not None
    assert user is users.log_in("ada", b"password")
    assert user.rights == {"put", "get"}
    assert user.may_access(b"q:1")
    assert not user.may_access(b"r")
    assert users.initial is NOBODY


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "there is no table"),
        ("users = 5", "there is no table"),
        ("users = {}", "there is no table"),
        ("[users", "this is not valid TOML"),
        ("colour = 1\n" + table(), "only tables"),
        ("[users]\nada = 5", "only these keys: may, nopass"),
        (table(colour="1"), "only these keys: may, nopass"),
        (table(queues=""), "must have queues"),
        (table(queues="", may=""), "must have may and queues"),
        (table(password_sha256=""), "either password-sha256 or nopass"),
        (table(nopass="true"), "either password-sha256 or nopass"),
        (table(nopass='"yes"', password_sha256=""), "nopass must be true or false"),
        (table(password_sha256='"s3cret"'), "64 hexadecimal digits"),
        (table(password_sha256=f'"{HASH[:-1]}"'), "64 hexadecimal digits"),
        (table(password_sha256=f'"{HASH}0"'), "64 hexadecimal digits"),
        (table(password_sha256="5"), "must be a string or a list"),
        (table(password_sha256=f'["{HASH}", 5]'), "must be a string or a list"),
        (
            table(may='["put", "rule"]'),
            "unknown right 'rule' for user 'ada': choose from put, get, read, administer",
        ),
        (table(may="true"), "must be a string or a list"),
        (table(queues='["' + "a" * 257 + '"]'), "256 bytes at most"),
        (table(queues='["' + "a" * 5000 + '"]'), "pattern is too long"),
        (table("a b"), "1 to 64 visible"),
        (table("a\\nb"), "1 to 64 visible"),
        (table("a" * 65), "1 to 64 visible"),
        (table(""), "1 to 64 visible"),
    ],
)
def test_an_error_in_a_users_file_is_one_line_without_secrets(text: str, error: str) -> None:
    with pytest.raises(UsersError, match=error) as refused:
        parse_users(text)
    assert HASH[:-1] not in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_user_s_repr_hides_its_hashes() -> None:
    user = parse_users(table()).by_name["ada"]
    assert HASH not in repr(user)
    assert repr(bytes.fromhex(HASH))[2:-1] not in repr(user)


@settings(deadline=None)  # a process may get no processor time for longer than the default of 0.2 s
@given(PASSWORDS, PASSWORDS)
def test_only_the_right_password_logs_in(password: bytes, tried: bytes) -> None:
    users = users_with_password(password)
    found = users.log_in("default", tried)
    assert (found is not None) == (tried == password)
    assert users.log_in("nobody", tried) is None
    assert users.log_in("", tried) is None
    assert users.initial is NOBODY


@pytest.mark.parametrize(
    "tried",
    [
        b"passwor", b"passwordx", b"password\n", b"password\0", b" password", b"PASSWORD", b"",
        HASH.encode(), bytes.fromhex(HASH), b"x" * 2000,
    ],
)  # fmt: skip
def test_a_similar_password_is_refused(tried: bytes) -> None:
    users = users_with_password(b"password")
    assert users.log_in("default", b"password") is not None
    assert users.log_in("default", tried) is None


@settings(max_examples=20)
@given(st.text(max_size=8).filter(lambda name: name != "default"), PASSWORDS)
def test_without_users_each_client_is_the_default_user(name: str, tried: bytes) -> None:
    users = AccessPolicy().read_users()
    assert users.initial.rights == set(RIGHTS)
    assert users.initial.has_all_queues
    assert users.log_in("default", tried) is users.initial
    assert users.log_in(name, tried) is None


def test_a_password_has_from_1_to_1024_bytes() -> None:
    users = users_with_password(b"a" * MAX_PASSWORD_BYTES)
    assert users.log_in("default", b"a" * MAX_PASSWORD_BYTES) is not None
    too_long = b"a" * (MAX_PASSWORD_BYTES + 1)
    assert users.log_in("default", too_long) is None
    for password in (b"", too_long):
        with pytest.raises(UsersError, match="from 1 to 1024 bytes"):
            users_with_password(password)


def test_the_default_user_has_one_password() -> None:
    with pytest.raises(UsersError, match="set its password there instead"):
        users_with_password(b"password", parse_users(table("default")))
    both = users_with_password(b"password", parse_users(table()))
    assert set(both.by_name) == {"default", "ada"}


@given(
    st.lists(st.text("ab*?[]", min_size=1, max_size=5), max_size=3),
    st.binary(max_size=6) | st.text("ab", max_size=5).map(str.encode),
)
def test_a_user_may_access_a_queue_if_a_pattern_matches(patterns: list[str], queue: bytes) -> None:
    user = User("ada", queues=tuple(patterns))
    expected = any(Glob(pattern.encode()).matches(queue) for pattern in patterns)
    assert user.may_access(queue) == bool(expected)


def test_a_name_of_megabytes_needs_access_to_all_queues() -> None:
    assert User("ada").may_access(b"a" * 10**6)
    assert not User("ada", queues=("a*",)).may_access(b"a" * 10**6)


DIGESTS = st.frozensets(st.sampled_from([password_digest(bytes([n])) for n in range(3)]))


@given(DIGESTS, DIGESTS, st.booleans(), st.booleans())
def test_an_invalid_login_has_no_user_after_a_reload(
    before: frozenset[bytes], after: frozenset[bytes], needed_none: bool, needs_none: bool
) -> None:
    old = User("ada", before, needed_none)
    new = Users([User("ada", after, needs_none)])
    is_valid = needs_none or (not needed_none and before <= after)
    assert new.successor_of(old) is (new.by_name["ada"] if is_valid else None)
    assert Users([]).successor_of(old) is None
    assert Users([]).successor_of(NOBODY) is NOBODY
    assert AccessPolicy().read_users().successor_of(NOBODY) is not NOBODY
