"""Test how the options of a sweep choose its directory and its engine."""

from pathlib import Path
from typing import Any

import pytest

from services.api.errors import InvalidRequestError
from spark_jobs.options import EngineName, SweepOptions, properties_of
from spark_jobs.sweeps.engines import prefers_spark


def options(**more: Any) -> SweepOptions:
    return SweepOptions("rsm:1", "rlmm:1", **more)


@pytest.mark.parametrize(
    ("work_dir", "path"),
    [
        (None, None),
        ("work", Path("work")),
        ("/work of 100%20 sweeps", Path("/work of 100%20 sweeps")),
        ("file:///work%20here", Path("/work here")),
        ("file:/work", Path("/work")),
        ("s3a://bucket/sweeps", None),
        ("hdfs://name/sweeps", None),
        ("abfss://container@account/sweeps", None),
    ],
)
def test_a_work_directory_is_a_path_or_a_uri(work_dir: str | None, path: Path | None) -> None:
    assert options(work_dir=work_dir).local_work_dir == path


@pytest.mark.parametrize(
    ("chosen", "is_spark"),
    [
        ({}, False),
        ({"work_dir": "/work"}, False),
        ({"work_dir": "s3a://bucket/sweeps"}, True),
        ({"master": "spark://host:7077"}, True),
        ({"conf": (("spark.executor.memory", "1g"),)}, True),
        ({"engine": EngineName.SPARK}, True),
        ({"engine": EngineName.LOCAL, "master": "local[2]"}, False),
    ],
)
def test_an_option_of_spark_chooses_spark(
    chosen: dict[str, Any], is_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert prefers_spark(options(**chosen)) is is_spark


def test_spark_submit_chooses_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert prefers_spark(options())


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"max_topic_percent": 101.0}, "--max-topic-percent"),
        ({"segments_per_s": -1.0}, "--segments-per-s"),
        ({"wave_segments": 0}, "--wave-segments"),
        ({"engine": EngineName.LOCAL, "work_dir": "s3a://bucket/sweeps"}, "--work-dir"),
    ],
)
def test_a_value_that_is_out_of_bounds_is_named(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        options(**wrong)


def test_properties_are_split_at_the_first_equals_sign() -> None:
    texts = ["spark.a=b=c", "spark.d="]
    assert properties_of(texts) == (("spark.a", "b=c"), ("spark.d", ""))
    for wrong in ("spark.a", "a=b"):
        with pytest.raises(InvalidRequestError, match="--conf"):
            properties_of([wrong])
