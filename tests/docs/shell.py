"""Runs the shell commands of a page, in order and as they are written there.

Every ``sh`` block counts.  A word after ``sh`` names an alternative (``sh filebeat``), whose
commands run only where that alternative is asked for.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.tools.processes import START_SECONDS, Launched, Launcher, environment

BLOCK = re.compile(r"^```sh(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

STAYS = {
    "msgproto gateway": r"lumberjack listening on (\S+)",
    "msgproto bridge": r"batch \d+: ([\d,]+) rows",
    "filebeat": r".",
}
"""Commands which keep their terminal, and the line which says that they are up."""

ENTERS = (". ", "cd ", "export ")
"""Commands which change the shell that runs them: every later command begins with them."""

SECONDS_MAX = 600.0


@dataclass(frozen=True)
class Command:
    """A command of a page, and the alternative to which it belongs (empty: to all)."""

    text: str
    alternative: str = ""

    @property
    def stays(self) -> str:
        """The pattern of the line that says it is up; empty if it ends by itself."""
        return next((line for name, line in STAYS.items() if self.text.startswith(name)), "")


def commands(page: str) -> Iterator[Command]:
    """Yield the commands of a page's text; a line that ends in a backslash continues."""
    for alternative, block in BLOCK.findall(page):
        for line in block.replace("\\\n", " ").splitlines():
            if (text := line.partition("  #")[0].strip()) and not text.startswith("#"):
                yield Command(" ".join(shlex.split(text, posix=False)), alternative)


@dataclass
class Terminal:
    """Runs commands one after another in a directory; those that stay are left running."""

    launch: Launcher
    env: Mapping[str, str] = field(default_factory=environment)
    entered: list[str] = field(default_factory=list)
    running: dict[str, Launched] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, command: Command) -> str:
        """Run a command and return what it printed; AssertionError if it fails."""
        began = time.monotonic()
        if command.text.startswith(ENTERS):
            self.entered.append(command.text)
            return ""
        # exec: a signal reaches the program, not the shell around it.
        start = "exec " if command.stays else ""
        script = "\n".join([*self.entered, start + command.text])
        launched = self.launch.command(["sh", "-c", script], env=self.env)
        if command.stays:
            launched.line(command.stays, seconds=START_SECONDS)
            self.running[command.text] = launched
        else:
            try:
                status = launched.wait(seconds=SECONDS_MAX)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{command.text}: still runs\n{launched.output}") from None
            assert status == 0, f"{command.text}: exit status {status}\n{launched.output}"
        self.seconds[command.text] = time.monotonic() - began
        return launched.output
