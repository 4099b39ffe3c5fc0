"""How far a send is: a bar on a terminal, plain lines elsewhere, nothing with ``--json``."""

import io
import sys

import pytest

from twisted_msgproto.cli import progress
from twisted_msgproto.cli.progress import Bar, Counted, PlainLines, progress_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_come_now_and_then(clock: list[float]) -> None:
    out = io.StringIO()
    with PlainLines(out) as plain:
        plain.sent(5)
        plain.acknowledged(3)
        assert out.getvalue() == ""  # work which ends at once says nothing on the way
        clock[0] += progress.PLAIN_SECONDS
        plain.sent(2)
        plain.acknowledged(1)
    assert out.getvalue() == "sent 7, acknowledged 3 so far\n"
    assert (plain.messages_sent, plain.messages_acknowledged) == (7, 4)


@pytest.mark.parametrize(("total", "shown"), [(10, "4/10"), (None, "4/7")])
def test_the_bar_shows_acknowledged_of_all_or_of_what_was_sent(
    total: int | None, shown: str
) -> None:
    out = Terminal()
    with Bar(out, total) as bar:
        bar.sent(7)
        bar.acknowledged(4)
    assert shown in out.getvalue()
    assert "sent 7" in out.getvalue()


def test_quiet_only_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_for(10, quiet=True) as counted:
        counted.sent(3)
        counted.acknowledged(3)
    assert type(counted) is Counted
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_and_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(progress_for(10)) is PlainLines
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert type(progress_for(10)) is Bar


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert type(progress_for(10)) is PlainLines
