"""Search for bytes that reach new lines: ``python -m tests.atheris sabc --seconds 60``.

The decoders and what must hold are those of ``tests/fuzz``.  The search begins with streams of each
grammar; an input that finds something is kept in ``tests/fuzz/findings``, where pytest reads it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import twisted_msgproto
from tests.fuzz.streams import CHOICE_BYTES, Target, examine_input

FINDINGS = Path(__file__).parent.parent / "fuzz" / "findings"
STREAMS = 200
"""The search begins with so many streams of the target's grammar."""

INPUT_BYTES_MAX = 8192
INPUT_SECONDS_MAX = 20
"""One input may need that long; longer is a finding."""

MEASURED = {"json": ("core",), "websocket": ("net.wires",)}
"""First word of a target → the rooms whose lines count; others have ``core`` and their own."""


def unmeasured(word: str) -> list[str]:
    """The modules whose lines do not count: each that does costs time at the start."""
    rooms = [f"twisted_msgproto.{room}" for room in MEASURED.get(word, ("core", word))]
    root = Path(twisted_msgproto.__file__).parent
    paths = [path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py")]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not f"{name}.".startswith(tuple(f"{r}." for r in rooms))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.atheris", description=__doc__)
    parser.add_argument("target", help="one of tests/fuzz/targets.py")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of the search")
    parser.add_argument("--within", help=argparse.SUPPRESS)  # a directory, for the child
    arguments = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("tests.atheris: atheris is missing: pip install atheris", file=sys.stderr)
        return 1
    if arguments.within is None:  # the search ends its process at once, whatever is left
        with tempfile.TemporaryDirectory() as directory:
            again = [sys.executable, "-m", "tests.atheris", *sys.argv[1:], "--within", directory]
            return subprocess.run(again).returncode
    word = arguments.target.partition("-")[0]
    with atheris.instrument_imports(include=["twisted_msgproto"], exclude=unmeasured(word)):
        from tests.fuzz.targets import TARGETS
    if arguments.target not in TARGETS:
        print(f"tests.atheris: no {arguments.target}; {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    search(atheris, arguments, TARGETS[arguments.target])
    return 0


def search(atheris: Any, arguments: argparse.Namespace, target: Target) -> None:
    """Search until the time is over or something is found; does not return."""
    findings = FINDINGS / arguments.target
    findings.mkdir(parents=True, exist_ok=True)
    corpus, words = Path(arguments.within, "corpus"), Path(arguments.within, "words")
    corpus.mkdir()
    for seed in range(STREAMS):
        octets = seed.to_bytes(CHOICE_BYTES, "big") + target.stream(Random(seed))
        Path(corpus, str(seed)).write_bytes(octets)
    quoted = ("".join(f"\\x{byte:02x}" for byte in token) for token in target.tokens)
    words.write_text("".join(f'"{token}"\n' for token in quoted))
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-seed={arguments.seed}",
        f"-dict={words}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={INPUT_SECONDS_MAX}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: examine_input(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
