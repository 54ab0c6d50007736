"""Test which aborted transactions a part names."""

import pytest

from services.api.remote_log_manager import AbortedTransaction
from services.records.index_files import AbortedTxn
from services.rlm.fetch.aborted_transactions import AbortedTransactions


@pytest.mark.parametrize("repeated", [0, 1])
def test_a_transaction_that_is_in_two_indexes_is_not_named_again(repeated: int) -> None:
    ended, later = AbortedTxn(9, 5, 20, 21), AbortedTxn(9, 40, 50, 51)
    search = AbortedTransactions(iter([ended, *[ended] * repeated, later]), 0)
    assert search.below(21) == (AbortedTransaction(5, 9),)
    assert search.below(51) == (AbortedTransaction(40, 9),)
