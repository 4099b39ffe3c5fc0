"""Run the public WebSocket cases against UMQ, sABC and bare autobahn, both sides.

``--write docs/how-it-is-tested.md`` puts the tables into that page.  Exit status 1 if a case of
ours has a worse verdict than bare autobahn's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.conformance import suite
from tests.conformance.suite import SECTIONS, Side, Verdict, Verdicts, ordered
from tests.conformance.testees import TESTEES

BEGIN: Final = "<!-- the table of tests.conformance -->"
END: Final = "<!-- the end of tests.conformance -->"
"""The page's tables stand between these lines."""

NAMES: Final = {
    "1": "framing",
    "2": "pings and pongs",
    "3": "reserved bits",
    "4": "opcodes",
    "5": "fragmentation",
    "6": "UTF-8",
    "7": "closing",
    "9": "limits and performance",
    "10": "miscellaneous",
}

SIDES: Final[dict[str, Side]] = {
    "server": suite.servers,
    "client": suite.clients,
}


def parser() -> argparse.ArgumentParser:
    """The options."""
    parsing = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parsing.add_argument(
        "--python2",
        default="python2.7",
        metavar="PROGRAM",
        help="the Python 2.7 that runs the suite (default: python2.7)",
    )
    parsing.add_argument(
        "--sections",
        default=",".join(SECTIONS),
        metavar="N,N…",
        help=f"only these sections of cases (default: {','.join(SECTIONS)})",
    )
    parsing.add_argument(
        "--side", action="append", choices=SIDES, help="only servers, or only clients"
    )
    parsing.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    return parsing


def counted(verdicts: Iterable[Verdict]) -> str:
    """``45 ok, 3 informational``."""
    counts = Counter(verdict.text for verdict in verdicts)
    return ", ".join(f"{number} {text}" for text, number in counts.most_common())


def tables(found: dict[str, Verdicts]) -> str:
    """What was found: a row for each section, then one for each case that differs."""
    heads = [f"{name}, {side}" for side in found for name in TESTEES]
    lines = [f"| cases | {' | '.join(heads)} |", "|" + "---|" * (len(heads) + 1)]
    cases = sorted({case for side in found.values() for case in side[TESTEES[0]]}, key=ordered)
    for section in dict.fromkeys(case.partition(".")[0] for case in cases):
        inside = [case for case in cases if case.startswith(f"{section}.")]
        cells = [
            counted(side[name][case] for case in inside if case in side[name])
            for side in found.values()
            for name in TESTEES
        ]
        lines.append(f"| {section} {NAMES[section]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n" + differing(found, cases)


def differing(found: dict[str, Verdicts], cases: Iterable[str]) -> str:
    """The cases in which the verdicts are not those of bare autobahn."""
    told: dict[str, list[str]] = {}
    for case in cases:
        for side, verdicts in found.items():
            bare = verdicts[TESTEES[0]][case]
            for name in TESTEES[1:]:
                if verdicts[name][case] != bare:
                    other = f"{name} as {side} {verdicts[name][case].text}, autobahn {bare.text}"
                    told.setdefault(other, []).append(case)
    texts = [f"{other} ({', '.join(which)})" for other, which in told.items()]
    return f"Other verdicts than bare autobahn's: {'; '.join(texts) or 'none'}."


def written(page: str, text: str) -> str:
    """The page with ``text`` between its two lines."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert rest and after, f"the page has no lines {BEGIN!r} and {END!r}"
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; exit status 1 if a case of ours is worse."""
    options = parser().parse_args(arguments)
    python = suite.python2(options.python2)
    suite.install(python)
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for side in options.side or SIDES:
            sections = options.sections.split(",")
            found[side] = suite.run(SIDES[side], python, sections, Path(directory))
    text = (
        f"Cases of autobahntestsuite 25.10.1 beside autobahn {version('autobahn')}, on the same"
        f" machine.\n\n{tables(found)}"
    )
    print(text)
    if options.write:
        options.write.write_text(written(options.write.read_text(), text))
    bad = [f"{side} of {name}: {case}" for side in found for name, case in suite.worse(found[side])]
    for line in bad:
        print(f"worse than autobahn: {line}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
