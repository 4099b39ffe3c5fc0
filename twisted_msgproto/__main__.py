"""``python -m twisted_msgproto`` is the same as ``msgproto``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
