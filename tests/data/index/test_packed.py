from hypothesis import given
from hypothesis import strategies as st

from nacre.data.index.packed import PackedPixels, pack, pixels_of, signature_of
from nacre.data.index.pairs import Pairs, sort_pairs
from nacre.data.index.scan import Pair, Record

NUMBER = st.integers(0, 2**62)
RECORDS = st.builds(
    Record,
    st.tuples(NUMBER, NUMBER, NUMBER, NUMBER),
    st.dictionaries(st.integers(0, 65535), NUMBER, max_size=9),
)


@given(RECORDS)
def test_what_is_packed_is_what_comes_out(record):
    packed = pack(record)
    assert signature_of(packed) == record.signature
    assert list(pixels_of(packed).items()) == list(record.pixels.items())


def test_packed_pixels_are_a_sequence_of_dicts():
    dicts = ({0: 5, 3: 1}, {}, {255: 7})
    packed = PackedPixels([pack(Record((1, 2, 3, 4), one)) for one in dicts])
    assert packed == dicts
    assert dicts == packed
    assert packed != dicts[:2]
    assert packed[2] == {255: 7}
    assert packed[1:] == dicts[1:]
    assert list(packed) == list(dicts)


def test_pairs_are_found_when_they_are_looked_at():
    asked = []

    def find(name):
        asked.append(name)
        return Pair(name, None, None)

    pairs = sort_pairs(Pairs(["b", "a", "c"], find))
    assert len(pairs) == 3
    assert not asked
    assert [pair.name for pair in pairs[1:]] == ["b", "c"]
    assert pairs[0].name == "a"
    assert [pair.name for pair in sort_pairs([pairs[2], pairs[0]])] == ["a", "c"]
