"""``python -m tests.tools.after CODE MODULE ARGUMENTS``: run MODULE in a process in which CODE ran
first, which limits it or takes something away.
"""

import runpy
import sys

if __name__ == "__main__":
    _, code, *sys.argv = sys.argv
    exec(code)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
