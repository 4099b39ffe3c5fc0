"""What the queue does to the operating system's files."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import types
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import own_time
from tests.sim.disk import SimulatedDisk
from tests.tools.measures import no_file_stays_open
from twisted_msgproto.core import disk as disk_module
from twisted_msgproto.core.disk import replace_file, sync_call
from twisted_msgproto.core.errors import QueueLocked
from twisted_msgproto.queue import OS_DISK

OSDisk: Any = type(OS_DISK)


def test_the_sync_is_the_strongest_cheap_one_there_is() -> None:
    """QUEUE_AND_SPARK: fdatasync; F_FULLFSYNC on macOS; else fsync."""
    calls: list[tuple[Any, ...]] = []
    linux = types.SimpleNamespace(
        fdatasync=lambda fd: calls.append(("fdatasync", fd)),
        fsync=lambda fd: calls.append(("fsync", fd)),
    )
    other = types.SimpleNamespace(fsync=lambda fd: calls.append(("fsync", fd)))
    darwin = types.SimpleNamespace(
        F_FULLFSYNC=51, fcntl=lambda fd, command: calls.append(("fcntl", fd, command))
    )
    plain = types.SimpleNamespace()
    for system, control in ((linux, plain), (other, plain), (other, None), (other, darwin)):
        sync_call(system, control)(7)
    assert calls == [("fdatasync", 7), ("fsync", 7), ("fsync", 7), ("fcntl", 7, 51)]


def test_bytes_and_names_are_synced_by_the_system__TB_01(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-01: other tests' disks only note what the queue and the table ask them for."""
    synced: list[int] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    path = tmp_path / "f"
    replace_file(OSDisk(), str(path), b"x")
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]


@pytest.mark.parametrize("most", [7, 1000, 1 << 30])
def test_all_is_written_however_little_a_call_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """As a signal may end one, and as no call takes 2 GiB; what stands in its way is told."""
    whole = os.pwritev

    def short(descriptor: int, pieces: Sequence[Any], at: int) -> int:
        return whole(descriptor, [b"".join(pieces)[:most]], at)

    monkeypatch.setattr(os, "pwritev", short)
    file = OS_DISK.open(str(tmp_path / "f"), write=True)
    pieces = [b"%05d" % number for number in range(1027)]
    file.write(2, [memoryview(array("i", [1, 2])), b"", *pieces])
    written = b"\0\0" + array("i", [1, 2]).tobytes() + b"".join(pieces)
    assert file.read(0, file.size()) == written
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(OSError, match="No space left"):
        file.write(0, [b"x"])
    file.close()


def test_a_read_in_parts_is_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(bytes(range(100)))
    file = OS_DISK.open(str(tmp_path / "f"))
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, octets, at: whole(fd, min(octets, 7), at))
    assert file.read(10, 50) == bytes(range(10, 60))
    assert file.read(90, 50) == bytes(range(90, 100))
    file.close()


def test_files_are_made_for_writing_only_and_for_their_owner_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        OS_DISK.open(path)
    file = OS_DISK.open(path, write=True)
    file.write(0, [b"12345"])
    file.truncate(3)
    file.sync()
    assert file.size() == 3
    file.close()
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_directory_of_somebody_else_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str, mode: int) -> None:
        raise PermissionError(errno.EPERM, "not yours", path)

    monkeypatch.setattr(os, "chmod", refused)
    OS_DISK.make_directory(str(tmp_path), close=True)


def synced_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the directories that are synced from now on."""
    synced: list[str] = []
    sync = OSDisk.sync_directory

    def noted(self: Any, path: str) -> None:
        synced.append(path)
        sync(self, path)

    monkeypatch.setattr(OSDisk, "sync_directory", noted)
    return synced


@pytest.mark.parametrize("there", ["", "a", "a/b", "a/b/c"])
def test_the_names_of_directories_are_durable_whoever_made_them__NB_12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    """NB-12: a process may have been killed before it had synced the names."""
    synced = synced_names(monkeypatch)
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    OS_DISK.make_directory(str(tmp_path / "a/b/c"))
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a/b")} <= set(synced)


def test_what_is_above_this_user_and_on_another_disk_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = []

    def refused(self: Any, path: str) -> None:
        refusals.append(path)
        raise PermissionError(errno.EACCES, "not yours", path)

    monkeypatch.setattr(OSDisk, "sync_directory", refused)
    OS_DISK.make_directory(str(tmp_path))
    assert refusals == [str(tmp_path.parent)]
    if os.path.ismount("/proc"):
        OS_DISK.make_directory("/proc")
    assert len(refusals) == 1


def test_a_directory_whose_name_cannot_be_synced_is_made_anew_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, path: str) -> None:
        if path == str(tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patched:
        patched.setattr(OSDisk, "sync_directory", broken)
        with pytest.raises(OSError, match="Input/output error"):
            OS_DISK.make_directory(str(tmp_path / "q"))
    assert not (tmp_path / "q").exists()
    OS_DISK.make_directory(str(tmp_path / "q"))


def test_a_directory_that_another_process_makes_in_between_is_closed_to_others_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.mkdir

    def late(path: str, mode: int) -> None:
        really(path, 0o755)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    monkeypatch.setattr(os, "mkdir", late)
    OS_DISK.make_directory(str(tmp_path / "q"), close=True)
    assert stat.S_IMODE((tmp_path / "q").stat().st_mode) == 0o700


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    unlock = OS_DISK.lock(path, "busy")
    with pytest.raises(QueueLocked, match=rf"busy \(process {os.getpid()}\)"):
        OS_DISK.lock(path, "busy")
    unlock()
    unlock = OS_DISK.lock(path, "busy")
    os.truncate(path, 0)
    with pytest.raises(QueueLocked, match=r"busy \(process unknown\)"):
        OS_DISK.lock(path, "busy")
    unlock()


def test_a_lock_on_a_full_disk_holds_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, nbytes: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    unlock = OS_DISK.lock(str(tmp_path / "lock"), "busy")
    with pytest.raises(QueueLocked):
        OS_DISK.lock(str(tmp_path / "lock"), "busy")
    unlock()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_that_goes_while_it_is_taken_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """It names another file, as after a copy of the directory: who removes it has a moment."""
    path = tmp_path / "lock"
    path.write_text("1 1\n")

    def meanwhile(_: float) -> None:
        path.unlink()
        if replaced:
            path.touch()

    monkeypatch.setattr(disk_module, "time", own_time(sleep=meanwhile))
    with pytest.raises(QueueLocked, match="was removed or replaced meanwhile"):
        OS_DISK.lock(str(path), "busy", used=True)


@pytest.mark.parametrize("call", ["flock", "stat", "fstat"])
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EACCES, errno.ENOTDIR, errno.EIO])
def test_a_lock_that_cannot_be_had_is_held_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def broken(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    path = str(tmp_path / "lock")
    with no_file_stays_open(), monkeypatch.context() as patched:
        patched.setattr(fcntl if call == "flock" else os, call, broken)
        with pytest.raises(OSError, match=os.strerror(number)):
            OS_DISK.lock(path, "busy")
    OS_DISK.lock(path, "busy")()


@pytest.mark.parametrize("step", ["write", "truncate", "sync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_file_that_could_not_be_replaced_takes_no_room(step: str, number: int) -> None:
    """What is left of it would fill a disk that has too little."""
    disk = SimulatedDisk()
    disk.make_directory("/d")
    replace_file(disk, "/d/f", b"old")
    disk.fail_next(step, number)
    disk.capacity = disk.used() + 50
    for data in (b"new", b"long" * 1000):
        with pytest.raises(OSError):
            replace_file(disk, "/d/f", data)
        assert (disk.names("/d"), disk.bytes_of("/d/f")) == (["f"], b"old")
    assert not disk.opened.total()


def test_who_holds_a_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    disk = OS_DISK
    path = str(tmp_path / "lock")
    assert disk.lock_holder(path) is None
    unlock = disk.lock(path, "busy")
    assert disk.lock_holder(path) == str(os.getpid())
    with pytest.raises(QueueLocked):
        disk.lock(path, "busy")
    unlock()
    before = set(os.listdir("/dev/fd"))
    assert disk.lock_holder(path) is None
    assert set(os.listdir("/dev/fd")) == before


def test_a_look_at_the_lock_does_not_keep_a_writer_from_it(tmp_path: Path) -> None:
    disk = OS_DISK
    path = str(tmp_path / "lock")
    disk.lock(path, "busy")()
    look = os.open(path, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    slept: list[float] = []

    def pass_by(seconds: float) -> None:
        slept.append(seconds)
        os.close(look)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_module, "time", own_time(sleep=pass_by))
        unlock = disk.lock(path, "busy")
    assert len(slept) == 1
    unlock()


def test_a_lock_replaces_a_longer_text_and_a_refused_one_leaves_no_descriptor(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"9" * 20 + b"\n")
    unlock = OS_DISK.lock(str(path), "busy")
    assert path.read_bytes() == b"%d %d\n" % (os.getpid(), path.stat().st_ino)
    before = set(os.listdir("/dev/fd"))
    with pytest.raises(QueueLocked):
        OS_DISK.lock(str(path), "busy")
    assert set(os.listdir("/dev/fd")) == before
    unlock()


def test_a_lock_whose_holder_cannot_be_read_is_held_all_the_same__RD_50(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RD-50: two writers of one queue lose messages."""
    path = str(tmp_path / "lock")
    unlock = OS_DISK.lock(path, "busy")

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", broken)
        with pytest.raises(QueueLocked, match=r"busy \(process unknown\)"):
            OS_DISK.lock(path, "busy")
        assert OS_DISK.lock_holder(path) == "unknown"
    unlock()
    assert OS_DISK.lock_holder(path) is None
