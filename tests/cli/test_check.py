"""``msgproto check FILE``: what a gateway would refuse is refused here, in the same words."""

from pathlib import Path

import pytest

from twisted_msgproto import cli


def test_a_good_file_is_told_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[lumberjack]\nendpoint = "tcp:1"\n[queue]\ndirectory = "spool"\n')
    assert cli.main(["check", str(file)]) == 0
    assert capsys.readouterr().out == "lumberjack: tcp:1\nqueue: spool\n"
    assert not (tmp_path / "spool").exists()


def test_a_file_without_a_queue_says_what_that_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[lumberjack]\n")
    assert cli.main(["check", str(file)]) == 0
    assert "not on disk" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[lumberyard]", "[lumberjack]\nendpiont = 1", "["])
def test_a_bad_file_is_one_line_which_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    assert cli.main(["check", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"msgproto check: {file}: ")
    assert told.count("\n") == 1
