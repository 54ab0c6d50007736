import pytest

from tests.harness.minio import GRPCURL, MINIO, GoProgram, GoProgramError, go_version


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("printed", "version"),
    [("go1.26.8", (1, 26)), ("go1.19", (1, 19)), ("go1.24rc1", (1, 24)), ("", (0, 0))],
)
def test_the_version_of_go_is_read(printed: str, version: tuple[int, int]) -> None:
    assert go_version(printed) == version


@pytest.mark.parametrize("program", [MINIO, GRPCURL])
def test_build_without_go_names_the_needed_version(
    monkeypatch: pytest.MonkeyPatch, program: GoProgram
) -> None:
    monkeypatch.setenv("PATH", "")
    needed = f"building {program.name} needs Go 1.24 or newer"
    with pytest.raises(GoProgramError, match=f"not on the PATH.*{needed}"):
        program.ensure()
