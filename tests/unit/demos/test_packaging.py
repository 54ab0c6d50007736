"""Check that the installed package contains the product and nothing else."""

from hatchling.builders.wheel import WheelBuilder

from tools.shape import ROOT


def test_the_wheel_holds_no_demos_and_no_tests() -> None:
    files = WheelBuilder(str(ROOT)).recurse_included_files()
    folders = {file.distribution_path.split("/")[0] for file in files}
    sources = {"pyspark_sediment", "pyspark_sediment_records"}
    assert folders == {"services", "spark_jobs", "tieredstorage"} | sources


def test_the_images_copy_no_demos() -> None:
    for dockerfile in (ROOT / "docker").iterdir():
        assert "demos" not in dockerfile.read_text(), dockerfile


def test_the_wheel_holds_the_suite_of_stores_and_what_emulators_are_made_of() -> None:
    files = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert "services/rsm/backends/contract.py" in files
    for folder in ("fake_gcs", "azurite"):
        sources = (ROOT / "services/local" / folder).iterdir()
        assert {str(each.relative_to(ROOT)) for each in sources} <= files
