"""The decoders under bytes that nobody would send: briefly by Atheris, and by Hypothesis."""

import importlib.util
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from fuzz.fuzz_decoder import SEEDS, TOKENS, check, decoded, seeds, strict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zeroeventhub import CountedCursor, Event, FeedInfo, Lag, Page
from zeroeventhub.errors import CutPage, ProtocolError
from zeroeventhub.ndjson import (
    PageDecoder,
    decode_counted_cursor,
    decode_cursor,
    decode_info,
    decode_lag,
    decode_splits,
    encode_page,
)

SCRIPT = Path(__file__).parents[2] / "fuzz" / "fuzz_decoder.py"
RUNS = 5_000

bodies = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join),
    st.lists(st.sampled_from(SEEDS) | st.binary(max_size=5), max_size=4).map(b"".join),
)


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed on this machine"
)
def test_fuzzer_finds_nothing_in_a_short_run(tmp_path):
    """The fuzzer of tests/fuzz runs, and a few thousand inputs show no fault."""
    shown = subprocess.run(
        [sys.executable, SCRIPT, f"-runs={RUNS}", "-seed=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr[-2000:]
    (runs,) = re.findall(r"Done (\d+) runs", shown.stderr)
    assert int(runs) >= RUNS
    assert int(re.search(r"DONE +cov: (\d+)", shown.stderr)[1]) > 50
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: repr(seed[:30]))
def test_reference_agrees_on_the_seeds(seed):
    """What the fuzzer starts from is read by Python's JSON as the decoder reads it."""
    check(seed)


@given(bodies.map(lambda body: b"\x00" + body))
@settings(max_examples=1_000)
def test_reference_agrees_on_any_bytes(data):
    """Any bytes are a page, a cut page or refused, in any chunks, just as Python's JSON says."""
    check(data)


@given(bodies, st.lists(st.integers(0, 400), max_size=10))
@settings(max_examples=500)
def test_chunks_make_no_difference(body, cuts):
    """However bytes are cut up, they are the same page or the same error."""
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert decoded([body[start:end] for start, end in pairwise(places)]) == decoded([body])


@given(bodies)
@settings(max_examples=1_000)
@example(b'{"cursor":"\xff"}')
@example(b'{"cursors":["a","\xed\xa0\x80"]}')
@example(b'{"events":0,"seconds":1e999}')
@example(b'{"token":"\xc0\x80","partitions":[]}')
@example(b'{"token":"t","partitions":[],"extensions":["\xff"]}')
def test_any_bytes_are_an_answer_or_refused(body):
    """Documents of every kind are read or refused: there is no other exception."""
    kinds = {decode_info: FeedInfo, decode_cursor: str, decode_lag: Lag, decode_splits: list}
    kinds[decode_counted_cursor] = CountedCursor
    for decode, kind in kinds.items():
        try:
            assert isinstance(decode(body), kind)
        except ProtocolError:
            continue


hostile_numbers = st.from_regex(
    r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,5})?", fullmatch=True
) | st.just("9" * 5_000)
hostile_texts = st.text(max_size=6) | st.sampled_from(
    ["\u2028", "\u2029", "\u0085", "\x00", "\r\n", "\ufeff", "\U0010ffff", '"cursor"', "\\u2028"]
)
quoted = st.builds(
    lambda text, plain: json.dumps(text, ensure_ascii=not plain), hostile_texts, st.booleans()
)
spaces = st.sampled_from(["", " ", "\t", "\r", " \r\t "])
hostile_json = st.recursive(
    st.sampled_from(["null", "true", "false", "-0", "-0.0", "1E+9999"]) | hostile_numbers | quoted,
    lambda items: st.one_of(
        st.builds(
            lambda parts, space: f"[{space}{f',{space}'.join(parts)}]",
            st.lists(items, max_size=4),
            spaces,
        ),
        # Names may be there twice: that is the publisher's affair.
        st.builds(
            lambda parts, space: (
                "{" + ",".join(f"{space}{k}{space}:{space}{v}" for k, v in parts) + "}"
            ),
            st.lists(
                st.tuples(st.sampled_from(['"a"', '"data"', '"cursor"']) | quoted, items),
                max_size=4,
            ),
            spaces,
        ),
        st.builds(lambda item, depth: "[" * depth + item + "]" * depth, items, st.integers(1, 60)),
    ),
    max_leaves=10,
).map(str.encode)


@given(
    st.lists(hostile_json, max_size=4),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 600), max_size=8),
)
@settings(max_examples=500)
def test_hostile_json_comes_through_byte_for_byte(texts, caught_up, stop_reached, cuts):
    """Numbers, names and characters that no language likes come through as they were sent."""
    page = Page([Event(text) for text in texts], "c", caught_up, stop_reached)
    body = encode_page(page)
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    decoder = PageDecoder(0)
    for start, end in pairwise(places):
        decoder.feed(body[start:end])
    assert decoder.page() == page
    check(b"\x00" + body)


@given(hostile_json)
@settings(max_examples=300)
def test_hostile_data_is_decoded_or_refused(text):
    """What Python cannot hold exactly is an error of the library's, and never another one."""
    event = Event(text)
    try:
        data = event.data
    except ProtocolError:
        return
    expected = strict(text.decode())
    assert same(data, expected), (data, expected)


def same(data, expected):
    """Compare decoded data with JSON whose numbers are kept as text."""
    match data:
        case dict():
            return data.keys() == expected.keys() and all(
                same(value, expected[name]) for name, value in data.items()
            )
        case list():
            return len(data) == len(expected) and all(map(same, data, expected))
        case bool() | None | str():
            return data == expected
        case int():
            return str(data) == expected or expected == "-0"
    return data == float(expected)


@pytest.mark.parametrize(
    "surrogate", [b'"\\ud800"', b'"\\udfff"', b'"\\ud800\\ud800"', b'"\\udc00\\ud800"']
)
@pytest.mark.parametrize("place", [b"%b", b"[[%b]]", b'{"a":%b}', b"{%b:1}"])
def test_lone_surrogates_are_refused_wherever_they_are(surrogate, place):
    """Half a character is no text, in data, in names, or in what would be passed over."""
    value = place % surrogate
    for field in (b"data", b"newer"):
        decoder = PageDecoder(0)
        with pytest.raises(ProtocolError):
            decoder.feed(b'{"%b":%b}\n' % (field, value))
    decoder = PageDecoder(0)
    decoder.feed(b'{"data":%b' % value)
    with pytest.raises(CutPage):
        decoder.page()
