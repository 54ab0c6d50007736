"""Test that RSM copies each byte at most once on its way to the store, and once on its way back."""

from pathlib import Path

from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import MIB, Files, copied, some_bytes
from tests.harness.published import growth
from tests.harness.served import serving


def test_each_byte_is_copied_once_in_either_direction(tmp_path: Path) -> None:
    files = Files(some_bytes(3 * MIB + 7))
    sent = sum(header.size_bytes for header in files.headers())
    settings = RsmSettings(backend="filesystem", directory=tmp_path, part_size_bytes=5 * MIB)
    counted = growth(
        'sediment_bytes_copied_total{place="part_buffer"}',
        'sediment_bytes_copied_total{place="message"}',
    )
    with serving(settings) as rsm:
        segment = copied(rsm.client, files)
        assert counted() == [sent, 0]
        assert b"".join(rsm.client.fetch_log_segment(segment, 0)) == files.log
        assert counted() == [sent, len(files.log)]
