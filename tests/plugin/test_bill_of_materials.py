"""Check the plugin's bill of materials and its licences."""

import json

import pytest

from hatch_build import ROOT
from tools.licences import components_of, java_rows

pytestmark = pytest.mark.plugin

BILL = ROOT / "kafka_plugin" / "target" / "bom.json"


def test_the_page_of_licences_lists_the_jar_and_all_are_allowed() -> None:
    page = (ROOT / "docs" / "reference" / "licences.md").read_text()
    table = page.split("## In the jar of the Kafka plugin")[1]
    rows = [line for line in table.splitlines(keepends=True) if ":" in line]
    assert rows == list(java_rows(components_of(BILL))), "run `make licences`"


def test_bill_lists_the_jars_contents_without_broker_and_tests() -> None:
    assert json.loads(BILL.read_text())["bomFormat"] == "CycloneDX"
    groups = {each["group"] for each in components_of(BILL)}
    assert {"io.grpc", "io.netty", "com.google.protobuf"} <= groups
    assert groups & {"org.apache.kafka", "org.junit.jupiter", "org.slf4j"} == set()
