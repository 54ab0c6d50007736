"""Test what the errors of obstore become."""

import pytest
from obstore.exceptions import GenericError

from services.api.errors import StoreAccessDeniedError
from services.rsm.backends.object_store_errors import store_errors


def test_a_refused_login_at_the_proxy_says_what_to_correct() -> None:
    expected = "reading a key: the proxy answered 407; correct the proxy_credentials_file"
    with pytest.raises(StoreAccessDeniedError, match=expected), store_errors("reading a key"):
        raise GenericError("Server returned non-2xx status code: 407 Proxy Authentication Required")
