"""Run the stages of a sweep in this process: a pool of threads, Parquet files in a directory."""

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from services.common.retry import RETRIABLE_ERRORS, StoppedError, ended_by
from spark_jobs.sweeps.plan import PARTITION, ROWS_PER_BATCH
from spark_jobs.sweeps.stages import Selection, Stored, Task, TooManySegmentsError

THREADS = max(4, 2 * (os.cpu_count() or 1))
"""Tasks mostly wait for the services."""

_TASK_ATTEMPTS = 4
_PARTITION_KEY = ["topic_id", "partition"]
_PLAN_ORDER = [(name, "ascending") for name in (*_PARTITION_KEY, "kind", "position")]
_EVEN_ORDER = [(name, "ascending") for name in (*_PARTITION_KEY, "start_offset", "segment_id")]


class LocalEngine:
    """An Engine of threads, with the rows of one wave in memory."""

    name = "local"

    def __init__(
        self, directory: Path, threads: int = THREADS, max_segments: int | None = None
    ) -> None:
        """Keep the stages in `directory`.

        Args:
            max_segments: raise TooManySegmentsError for more; None for no limit.
        """
        self._directory = directory
        self._threads = threads
        self._max_segments = max_segments

    @property
    def parallelism(self) -> int:
        return self._threads

    @property
    def attempts_at_once(self) -> int:
        return 1

    def require_room(self, segments: int) -> None:
        if self._max_segments is not None and segments > self._max_segments:
            raise TooManySegmentsError

    def scatter(
        self, name: str, task: Task, rows: pa.Table, schema: pa.Schema, tasks: int
    ) -> Stored:
        return self._run(name, task, _slices(rows, tasks), schema)

    def by_partition(
        self, name: str, task: Task, source: Stored, which: Selection, schema: pa.Schema, tasks: int
    ) -> Stored:
        rows = self._table(source, which).sort_by(_PLAN_ORDER)
        return self._run(name, task, _whole_partitions(rows, tasks), schema)

    def evenly(
        self, name: str, task: Task, source: Stored, which: Selection, schema: pa.Schema, tasks: int
    ) -> Stored:
        rows = self._table(source, which).sort_by(_EVEN_ORDER)
        return self._run(name, task, _slices(rows, tasks), schema)

    def read(
        self, source: Stored, which: Selection, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        dataset = self._dataset(source)
        batches: Iterator[pa.RecordBatch] = dataset.to_batches(
            columns=list(columns), filter=_expression(which), batch_size=ROWS_PER_BATCH
        )
        return batches

    def count(self, source: Stored) -> int:
        return int(self._dataset(source).count_rows())

    def _dataset(self, source: Stored) -> ds.Dataset:
        return ds.dataset(source.path, schema=source.schema, format="parquet")

    def _table(self, source: Stored, which: Selection) -> pa.Table:
        return self._dataset(source).to_table(filter=_expression(which))

    def _run(self, name: str, task: Task, inputs: Iterable[pa.Table], schema: pa.Schema) -> Stored:
        directory = self._directory / name
        directory.mkdir()
        stop = Event()

        def run(number: int, rows: pa.Table) -> int:
            path = directory / f"part-{number:05}.parquet"
            batches = rows.to_batches(ROWS_PER_BATCH)
            with ended_by(stop):
                return _repeated(lambda: _write(path, task(_until(stop, batches)), schema, stop))

        with ThreadPoolExecutor(self._threads, thread_name_prefix=name) as pool:
            try:
                futures = [pool.submit(run, number, rows) for number, rows in enumerate(inputs)]
                counts = [future.result() for future in futures]
            except BaseException:
                # A task failed, or a signal stops the sweep: the others end their batch or wait.
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return Stored(str(directory), sum(counts), schema)


def _until(stop: Event, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if stop.is_set():
            raise StoppedError
        yield batch


def _write(path: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, stop: Event) -> int:
    rows = 0
    with pq.ParquetWriter(path, schema) as writer:
        for batch in _until(stop, batches):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _repeated(attempt: Callable[[], int]) -> int:
    """Run a task again if a service failed it, as Spark does."""
    for _ in range(_TASK_ATTEMPTS - 1):
        try:
            return attempt()
        except RETRIABLE_ERRORS:
            continue
    return attempt()


def _slices(rows: pa.Table, tasks: int) -> list[pa.Table]:
    size = max(1, -(-rows.num_rows // tasks))
    return [rows.slice(start, size) for start in range(0, max(rows.num_rows, 1), size)]


def _whole_partitions(rows: pa.Table, tasks: int) -> list[pa.Table]:
    """Split rows in order of their partitions into about so many parts, between partitions."""
    kinds = rows["kind"].to_pylist()
    starts = [index for index, kind in enumerate(kinds) if kind == PARTITION]
    size = max(1, -(-rows.num_rows // tasks))
    cuts, last = [0], 0
    for start in starts:
        if start - last >= size:
            cuts.append(start)
            last = start
    ends = [*cuts[1:], rows.num_rows]
    return [rows.slice(start, end - start) for start, end in zip(cuts, ends, strict=True)]


def _expression(which: Selection) -> pc.Expression | None:
    conditions = which.conditions(pc.field)
    return reduce(operator.and_, conditions) if conditions else None
