"""The parsers of all protocols: requests do not depend on how bytes are split; work and memory are bounded.

resp/test_parser.py and memcached/test_parser.py test what is particular to one protocol.
"""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pressure_server.net.line_parser import FEW_WORDS
from tests.support.codecs import (
    CODECS,
    MAX_MESSAGE,
    MEMCACHED,
    RESP,
    SPLITS,
    Codec,
    bytewise,
    cut,
    each_codec,
    traced_memory,
)
from tests.support.waiters import packed

LARGEST = 512 << 20


@pytest.mark.slow
@each_codec
@settings(max_examples=200, deadline=None)
@given(data=st.data(), places=SPLITS)
def test_a_stream_in_any_pieces_gives_the_same_requests_and_final_error(
    codec: Codec, data: st.DataObject, places: list[int]
) -> None:
    requests, stream = data.draw(codec.streams)
    broken = data.draw(st.sampled_from([b"", *codec.broken]))
    errors = codec.fed(broken)
    assert len(errors) == bool(broken)
    assert codec.fed(stream + broken) == [*requests, *errors]
    assert codec.fed(*cut(stream + broken, places)) == [*requests, *errors]


@pytest.mark.slow
@each_codec
# By chance, too many of the first examples may be large.
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(data=st.data())
def test_a_stream_in_single_bytes_gives_the_same_requests(codec: Codec, data: st.DataObject) -> None:
    expected, stream = data.draw(codec.streams)
    assert codec.fed(*bytewise(stream)) == expected


@pytest.mark.slow
@each_codec
@settings(max_examples=400, deadline=None)
@given(data=st.data(), places=SPLITS)
def test_random_tokens_in_any_pieces_give_the_same_output(
    codec: Codec, data: st.DataObject, places: list[int]
) -> None:
    stream = b"".join(data.draw(st.lists(st.sampled_from(codec.tokens), max_size=30)))
    whole = codec.fed(stream)
    assert codec.fed(*cut(stream, places)) == whole
    assert codec.fed(*bytewise(stream)) == whole


@pytest.mark.slow
@each_codec
@settings(max_examples=300, deadline=None)
@given(data=st.data(), places=SPLITS)
def test_any_bytes_give_requests_or_errors_and_a_small_buffer(
    codec: Codec, data: st.DataObject, places: list[int]
) -> None:
    tokens = st.lists(st.one_of(st.sampled_from(codec.tokens), st.binary(max_size=6)), max_size=30)
    stream = data.draw(st.one_of(st.binary(max_size=300), tokens.map(b"".join)))
    parser = codec.parser(MAX_MESSAGE)
    for piece in cut(stream, places):
        out = parser.feed(piece)
        for item in out:
            codec.check(item)
        assert parser.unparsed <= codec.most_held(len(stream))
        assert sum(map(codec.size, codec.flat(out))) <= len(stream)
        if out and codec.is_fatal(out[-1]):
            break


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("codec", "name"),
    [(codec, name) for codec in CODECS for name in codec.work],
    ids=[f"{codec.name}-{name}" for codec in CODECS for name in codec.work],
)
def test_a_parser_does_not_scan_small_pieces_repeatedly(codec: Codec, name: str, size: int) -> None:
    stream, parser, found = codec.work[name](), codec.counting(32 << 20), []
    for start in range(0, len(stream), size):
        found += parser.feed(stream[start : start + size])
    assert codec.flat(found) == codec.fed(stream, most=32 << 20)
    assert parser.looked_at < codec.most_looks * len(stream) + 2048


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16, 1460])
@each_codec
def test_a_message_in_small_pieces_takes_little_more_than_its_size(codec: Codec, size: int) -> None:
    message = MAX_MESSAGE // 16
    stream, parser = codec.announce(message) + bytes(message - 1), codec.parser(MAX_MESSAGE)
    with traced_memory() as traced:
        for start in range(0, len(stream), size):
            assert parser.feed(stream[start : start + size]) == []
        kept, _ = traced()
    assert message - 1 <= parser.unparsed <= len(stream) + 64
    assert kept < 2.5 * len(stream)


@pytest.mark.parametrize(
    ("codec", "request_of"),
    [
        (MEMCACHED, lambda words: b" ".join(words) + b"\r\n"),
        (RESP, lambda words: b" ".join(words) + b"\r\n"),
        (RESP, lambda words: packed(*words)),
    ],
    ids=["memcached", "inline", "resp"],
)
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_each_word_of_a_request_of_many_words_is_counted_once(
    codec: Codec, request_of: Callable[[list[bytes]], bytes], size: int
) -> None:
    parser, stream = codec.parser(MAX_MESSAGE), request_of([b"get", *([b"k"] * 1000)])
    counted = 0
    for start in range(0, len(stream), size):
        parser.feed(stream[start : start + size])
        counted += parser.many_words
    assert 1001 - FEW_WORDS <= counted <= 1001
    parser.feed(request_of([b"get", b"k"]))
    assert parser.many_words == 0


@each_codec
def test_an_announced_message_takes_no_memory(codec: Codec) -> None:
    parser = codec.parser(LARGEST)
    with traced_memory() as traced:
        assert parser.feed(codec.announce(LARGEST)) == []
        assert parser.feed(b"x") == []
        kept, _ = traced()
    assert kept < 10_000
