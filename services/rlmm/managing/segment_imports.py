"""RLMM on SQL: metadata that something else has kept is taken over."""

from collections.abc import Iterable

from services.api.segment_imports import ImportedSegments, SegmentImport
from services.rlmm import segment_imports
from services.rlmm.managing.database import OnDatabase


class SqlSegmentImports(OnDatabase):
    """Satisfies services.api.segment_imports.SegmentImports."""

    def import_remote_log_segments(self, imports: Iterable[SegmentImport]) -> ImportedSegments:
        return segment_imports.import_all(self._transactions, self._limits, imports)
