"""Any JSON, as Hypothesis draws it."""

from hypothesis import strategies as st

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


def json_values(leaves, names=None):
    """Draw null, booleans and leaves, and arrays and objects of them, whose members have names."""
    names = st.text() if names is None else names
    return st.recursive(
        st.none() | st.booleans() | leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    )
