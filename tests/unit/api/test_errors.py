"""Test the tree of errors: every class has a reason of its own."""

from collections import Counter

import pytest

from services.api.errors import InvalidRequestError, RemoteStorageError, every_error_class
from services.api.validation import within


def test_no_two_classes_share_a_reason() -> None:
    counted = Counter(cls.reason for cls in every_error_class())
    assert [reason for reason, times in counted.items() if times > 1] == []


def test_only_the_root_stands_for_internal() -> None:
    internal = [c for c in every_error_class() if c.status == RemoteStorageError.status]
    assert internal == [RemoteStorageError]


def test_field_paths_grow_from_the_inside_out() -> None:
    expected = pytest.raises(InvalidRequestError, match=r"^header\.metadata\.offset: is odd$")
    with expected, within("header"), within("metadata"):
        raise InvalidRequestError("offset: is odd")
