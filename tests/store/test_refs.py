"""References stay inside the store."""

import pytest
from pydantic import ValidationError

from solrl_tasks.store.refs import Ref

GOOD = {"kind": "pools", "key": "0" * 24, "digest": "a" * 64, "path": "pools/x"}


def test_a_reference_survives_json():
    ref = Ref.model_validate(GOOD)
    assert Ref.model_validate_json(ref.model_dump_json()) == ref
    assert len(ref.model_dump_json()) < 300


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/etc/passwd"},
        {"path": "../x"},
        {"path": "pools/../../x"},
        {"path": ""},
        {"path": "pools\\x"},
        {"kind": "secrets"},
        {"key": "short"},
        {"digest": "Z" * 64},
        {"extra": 1},
    ],
)
def test_bad_references_are_refused(change):
    with pytest.raises(ValidationError):
        Ref.model_validate({**GOOD, **change})
