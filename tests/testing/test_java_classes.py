"""The archive of Spark's classes is made once for each Java and Spark, or done without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tools import java_classes


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The Spark of each archive that is made; of none, where Java makes none."""
    stamps: list[str] = []

    def make(environment: Mapping[str, str]) -> None:
        wanted = java_classes.wanted_stamp()
        assert wanted is not None
        stamps.append(wanted)
        if wanted != "a Java that makes none":
            java_classes.ARCHIVE.touch()

    monkeypatch.setattr(java_classes, "ARCHIVE", tmp_path / "classes.jsa")
    monkeypatch.setattr(java_classes, "STAMP", tmp_path / "classes.txt")
    monkeypatch.setattr(java_classes, "make", make)
    return stamps


def test_it_is_made_once_for_each_java_and_spark(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stamp in ("4.1", "4.1", "4.2", "4.2"):
        monkeypatch.setattr(java_classes, "wanted_stamp", lambda stamp=stamp: stamp)
        assert java_classes.main([]) == 0
    assert made == ["4.1", "4.2"]
    assert f"-XX:SharedArchiveFile={java_classes.ARCHIVE} " in java_classes.options()


def test_without_it_java_starts_the_usual_way(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_classes, "wanted_stamp", lambda: "a Java that makes none")
    assert [java_classes.main([]), java_classes.main([])] == [1, 1]
    assert java_classes.options() == java_classes.QUICK


def test_without_java_or_spark_there_is_nothing_to_make(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_classes, "wanted_stamp", lambda: None)
    assert (java_classes.main([]), made) == (0, [])
