"""Keys: equal values have equal addresses, and nothing ambiguous has one."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solrl_tasks.store.keys import canonical_json, digest, key

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
trees = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@given(trees)
def test_a_round_trip_through_json_keeps_the_digest(tree):
    assert digest(json.loads(json.dumps(tree))) == digest(tree)


@given(st.dictionaries(st.text(), scalars))
def test_the_order_of_keys_does_not_matter(tree):
    assert canonical_json(dict(reversed(list(tree.items())))) == canonical_json(tree)


def test_the_canonical_form_is_fixed():
    value = {"b": [1, 1.0, 1e-7, True, None], "a": {"é": "x"}, "c": (2,)}
    assert canonical_json(value) == '{"a":{"\\u00e9":"x"},"b":[1,1.0,1e-07,true,null],"c":[2]}'
    assert digest(value) == hashlib.sha256(canonical_json(value).encode()).hexdigest()
    assert key(value) == digest(value)[:24]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1.0, float("nan")]}, r"a\[1\] is nan"),
        ({"a": {"b": float("inf")}}, r"a\.b is inf"),
        ({1: 2}, "key 1"),
        ({"a": {3, 4}}, "a is a set"),
        ({"a": np.float32(1.0)}, "a is a float32"),
        (b"x", "the value is a bytes"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(value, message):
    with pytest.raises(ValueError, match=message):
        canonical_json(value)
