"""``python -m benchmarks.reading ROW DIRECTORY SCALE``: answers each line with one reading."""

import json
import sys
from contextlib import closing
from pathlib import Path

from .rows import ROWS


def main(name: str, directory: str, scale: str) -> None:
    """Read until the input ends."""
    with closing(ROWS[name].readings(Path(directory), float(scale))) as readings:
        for _ in sys.stdin:
            print(json.dumps(next(readings)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
