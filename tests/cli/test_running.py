"""One coroutine in the reactor: its result, its error, its end by a signal.  Real processes."""

import signal
import sys
import textwrap

import pytest

from tests.tools.processes import Launched, Launcher

PROGRAM = """
import sys
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted_msgproto.cli.running import run_in_reactor

async def work(reactor):
{work}

try:
    print("returned", run_in_reactor(work), flush=True)
except BaseException as error:
    print("raised", type(error).__name__, error, flush=True)
"""


def started(launch: Launcher, work: str) -> Launched:
    text = PROGRAM.format(work=textwrap.indent(textwrap.dedent(work), "    "))
    return launch.command([sys.executable, "-c", text])


@pytest.mark.parametrize(
    ("work", "outcome"),
    [
        ("return 7", "returned 7"),
        ("return await deferLater(reactor, 0, lambda: 8)", "returned 8"),
        ("raise ValueError('at once')", "raised ValueError at once"),
        ("await deferLater(reactor, 0, int, 'x')", "raised ValueError invalid"),
    ],
)
def test_the_result_and_the_error_are_the_works(launch: Launcher, work: str, outcome: str) -> None:
    program = started(launch, work)
    assert program.wait() == 0
    assert program.output.startswith(outcome)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_work_end_in_peace(launch: Launcher, number: signal.Signals) -> None:
    program = started(
        launch,
        """
        print("started", flush=True)
        try:
            await Deferred()
        finally:
            await deferLater(reactor, 0.01, print, "tidied up", flush=True)
        """,
    )
    program.line("started")
    program.signal(number)
    assert program.wait() == 0
    assert [line.strip() for line in program.lines] == [
        "started",
        "tidied up",
        "raised KeyboardInterrupt",
    ]
