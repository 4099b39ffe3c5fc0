"""``msgproto doctor`` says what this machine lacks."""

import json
import resource
from pathlib import Path

import pytest

from twisted_msgproto import cli
from twisted_msgproto.cli import doctor
from twisted_msgproto.cli.doctor import MISSING, NOTE, OK, Finding

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/sdb1 /mnt/big\\040disk xfs rw 0 0
"""


def test_a_machine_that_runs_these_tests_lacks_nothing_of_the_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["doctor", "--json", "--queue", str(tmp_path / "not" / "yet")])
    found = {row["subject"]: row for row in json.loads(capsys.readouterr().out)}
    for subject in ("Python", "pyarrow", "queue's disk", "queue's space", "one sync"):
        assert found[subject]["state"] != MISSING
    assert not (tmp_path / "not").exists()


def test_something_missing_is_exit_status_1_and_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PARTS", (("queue", "no-such-package", "the durable queue"),))
    monkeypatch.setattr(doctor, "java", lambda: Finding("Java", OK, "17"))
    assert cli.main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "missing  no-such-package" in told
    assert "→ pip install 'twisted-msgproto[queue]'" in told
    monkeypatch.setattr(doctor, "PARTS", (("fast", "no-such-package", "quicker zlib"),))
    assert cli.main(["doctor"]) == 0
    assert "note     no-such-package" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("soft", "state"), [(1024, NOTE), (10_000, OK), (resource.RLIM_INFINITY, OK)]
)
def test_few_open_files_are_a_note(soft: int, state: str) -> None:
    assert doctor.open_files((soft, resource.RLIM_INFINITY)).state == state


@pytest.mark.parametrize(
    ("directory", "kind"),
    [("/srv/queue", "ext4"), ("/run/queue", "tmpfs"), ("/mnt/big disk/q", "xfs"), ("/", "ext4")],
)
def test_the_nearest_mount_names_the_file_system(directory: str, kind: str) -> None:
    assert doctor.file_system(Path(directory), MOUNTS) == kind


def test_a_queue_in_memory_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "read_mounts", lambda: "tmpfs / tmpfs rw 0 0\n")
    assert next(doctor.disk(tmp_path)).state == NOTE


@pytest.mark.parametrize(("seconds", "state"), [(0.002, OK), (0.05, NOTE)])
def test_a_slow_disk_is_a_note(tmp_path: Path, seconds: float, state: str) -> None:
    times = iter(n * seconds for n in range(1000))
    assert doctor.sync_time(tmp_path, lambda: next(times)).state == state


def test_an_unknown_sub_command_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["docter"]) == 2
    assert "did you mean 'doctor'?" in capsys.readouterr().err
