"""Where a table can stand: locations which are none are one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from twisted_msgproto.core.errors import TableError
from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.storage import LOG, LocalStorage, ObjectStorage, storage_at


def test_a_directory_and_its_url_are_one_place(tmp_path: Path) -> None:
    place = tmp_path / "tab le"
    by_path, by_url = storage_at(place), storage_at(place.as_uri())
    assert isinstance(by_url, LocalStorage)
    assert by_path.location == by_url.location == str(place)


def test_an_object_stores_options_are_taken_in_any_case() -> None:
    place = storage_at("s3://bucket/t/", {"AWS_REGION": "eu-1"})
    assert isinstance(place, ObjectStorage)
    assert (place.location, place.options["aws_region"]) == ("s3://bucket/t", "eu-1")


@pytest.mark.parametrize(
    ("location", "options", "text"),
    [
        ("", {}, "a table needs a location"),
        ("file://host/t", {}, "names a file of another machine, host"),
        ("/t", {"aws_region": "eu-1"}, r"is a directory: storage options \(aws_region\) are not"),
    ],
)
def test_a_place_which_cannot_be_is_one_line(
    location: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(TableError, match=text):
        storage_at(location, options)


@pytest.mark.parametrize("kind", [LocalStorage, lambda path: ObjectStorage(f"file://{path}")])
def test_a_table_has_files_and_says_what_is_not_there(
    tmp_path: Path, kind: Callable[[str], LocalStorage | ObjectStorage]
) -> None:
    """delta-rs opens a directory as it opens a bucket."""
    storage = kind(str(tmp_path))
    assert storage.local == isinstance(storage, LocalStorage)
    assert storage.log_names() == []
    (tmp_path / LOG).mkdir()
    (tmp_path / LOG / "a.json").write_bytes(b"abc")
    assert storage.log_names() == ["a.json"]
    assert (storage.read(f"{LOG}/a.json"), storage.size(f"{LOG}/a.json")) == (b"abc", 3)
    with storage.filesystem().open_output_stream("c.bin") as stream:
        stream.write(memoryview(b"12"))
    assert storage.size("c.bin") == 2
    storage.delete(f"{LOG}/a.json")
    assert storage.log_names() == []
    for missing in (storage.size, storage.read):
        with pytest.raises(FileNotFoundError):
            missing(f"{LOG}/a.json")


def test_an_object_store_is_on_no_disk_of_ours() -> None:
    with pytest.raises(ValueError, match="no disk"):
        storage_at("s3://bucket/t", {}, OSTableDisk())
