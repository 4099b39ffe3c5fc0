"""Processes of a sub-command: none outlives it, whatever it does about signals."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.processes import gone, wait_gone
from twisted_msgproto.cli import demo as room
from twisted_msgproto.cli.demo import Child, Children, handled


def python(code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Make ``python -m twisted_msgproto`` run this code; returns its only word."""
    script = tmp_path / "script.py"
    script.write_text(code)
    started = room.subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        return started([command[0], str(script)], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(room.subprocess, "Popen", popen)
    return "x"


def said(child: Child, count: int) -> list[str]:
    deadline = time.monotonic() + 30
    while len(child.lines()) < count:
        assert time.monotonic() < deadline, child.lines()
        time.sleep(0.01)
    return child.lines()


def test_a_child_ends_in_peace_when_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    word = python(
        "import signal, sys, time\n"
        "def end(*_):\n    print('tidied up')\n    sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('runs')\ntime.sleep(60)",
        monkeypatch,
        tmp_path,
    )
    with Children(tmp_path) as children:
        child = children.start("one", word)
        said(child, 1)
    assert child.lines() == ["runs", "tidied up"]
    assert child.status == 3


def test_a_child_that_will_not_end_and_its_own_child_are_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    word = python(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(inner.pid)\ntime.sleep(60)",
        monkeypatch,
        tmp_path,
    )
    children = Children(tmp_path)
    child = children.start("one", word)
    (inner,) = said(child, 1)
    Children.end([child], seconds=0.1)
    assert child.status == -signal.SIGKILL
    assert wait_gone(int(inner))


def test_what_a_child_left_behind_is_killed_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    word = python(
        "import subprocess, sys\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(inner.pid)",
        monkeypatch,
        tmp_path,
    )
    with Children(tmp_path) as children:
        child = children.start("one", word)
        (inner,) = said(child, 1)
        assert child.wait(30) == 0
        assert not gone(int(inner))
    assert wait_gone(int(inner))


def test_a_second_signal_does_not_disturb_the_ending(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    word = python(
        "import os, signal, sys, time\n"
        "def end(*_):\n"
        f"    os.kill({os.getpid()}, signal.SIGINT)\n    time.sleep(0.1)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('runs')\ntime.sleep(60)",
        monkeypatch,
        tmp_path,
    )
    with pytest.raises(ZeroDivisionError), Children(tmp_path) as children:
        child = children.start("one", word)
        said(child, 1)
        raise ZeroDivisionError
    assert child.status == 0


@pytest.fixture
def own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in room.ENDING_SIGNALS}
    yield
    assert {number: signal.getsignal(number) for number in room.ENDING_SIGNALS} == before


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("number", room.ENDING_SIGNALS)
def test_every_ending_signal_is_an_interrupt(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), handled(signal.default_int_handler):
        os.kill(os.getpid(), number)
        time.sleep(5)


@pytest.mark.usefixtures("own_signals")
def test_a_signal_while_a_child_starts_takes_effect_when_it_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    word = python("import time; time.sleep(60)", monkeypatch, tmp_path)
    started = room.subprocess.Popen

    def interrupted(*args: object, **options: object) -> object:
        process = started(*args, **options)  # type: ignore[call-overload]
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(room.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt), Children(tmp_path) as children:
        children.start("one", word)
    (child,) = children.all
    assert child.status == -signal.SIGTERM
