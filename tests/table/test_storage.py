"""Where a table can stand: locations which are none are one line."""

from __future__ import annotations

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


def test_an_object_store_is_on_no_disk_of_ours() -> None:
    with pytest.raises(ValueError, match="no disk"):
        storage_at("s3://bucket/t", {}, OSTableDisk())


def test_a_file_is_put_durably_and_in_one_step__TB_01(tmp_path: Path) -> None:
    """Neither a reader nor a power failure ever finds half of it."""
    steps: list[tuple[str, ...]] = []

    class Watched(OSTableDisk):
        def write(self, path: str, octets: bytes) -> None:
            steps.append(("write", path))
            super().write(path, octets)

        def sync(self, path: str) -> None:
            steps.append(("sync", path))
            super().sync(path)

        def rename(self, old: str, new: str) -> None:
            steps.append(("rename", old, new))
            super().rename(old, new)

        def sync_directory(self, path: str) -> None:
            steps.append(("sync directory", path))
            super().sync_directory(path)

    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "hint").write_bytes(b"old")
    LocalStorage(str(tmp_path), Watched()).put(str(log / "hint"), b"new")
    temporary = steps[0][1]
    assert steps == [
        ("write", temporary),
        ("sync", temporary),
        ("rename", temporary, str(log / "hint")),
        ("sync directory", str(log)),
    ]
    assert [file.read_bytes() for file in log.iterdir()] == [b"new"]


def test_an_object_store_has_files_and_says_what_is_not_there(tmp_path: Path) -> None:
    """delta-rs opens a directory as it opens a bucket."""
    (tmp_path / LOG).mkdir()
    (tmp_path / LOG / "a.json").write_bytes(b"abc")
    storage = ObjectStorage(tmp_path.as_uri())
    assert (storage.local, LocalStorage("/x").local) == (False, True)
    assert storage.log_names() == ["a.json"]
    assert (storage.read(f"{LOG}/a.json"), storage.size(f"{LOG}/a.json")) == (b"abc", 3)
    for missing in (storage.size, storage.read):
        with pytest.raises(FileNotFoundError):
            missing(f"{LOG}/b.json")
    with storage.filesystem().open_output_stream("c.bin") as stream:
        stream.write(memoryview(b"12"))
    assert storage.size("c.bin") == 2
    storage.delete(f"{LOG}/a.json")
    assert storage.log_names() == []


def test_a_directory_has_files_and_says_what_is_not_there(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    assert storage.log_names() == []
    (tmp_path / LOG).mkdir()
    (tmp_path / LOG / "a.json").write_bytes(b"abc")
    assert storage.log_names() == ["a.json"]
    assert (storage.read(f"{LOG}/a.json"), storage.size(f"{LOG}/a.json")) == (b"abc", 3)
    storage.delete(f"{LOG}/a.json")
    for missing in (storage.size, storage.read, storage.delete):
        with pytest.raises(FileNotFoundError):
            missing(f"{LOG}/a.json")
    assert storage.log_path() == f"{tmp_path}/{LOG}"


def test_where_there_is_no_log_it_has_no_names(tmp_path: Path) -> None:
    assert ObjectStorage(f"file://{tmp_path}").log_names() == []
