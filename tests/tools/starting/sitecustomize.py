"""What Python does first in each process that tests start, for the workers of Spark sessions.

Spark puts archives in front of its workers' path: the sources of pyspark, which each start would
compile anew (0.45 s of CPU time), and a jar, whose thousands of names Python would read twice
(0.3 s).  A session starts up to six such processes, and they import pyspark from where it is
installed.  Arrow would import NumPy (0.14 s); where there is no pandas there is no NumPy either.
"""

import sys
from importlib.machinery import PathFinder

ARCHIVES = ("/pyspark.zip", "-src.zip", ".jar")
LEAN = "/tests/tools/lean"

without = [place for place in sys.path if not place.endswith(ARCHIVES)]
if len(without) < len(sys.path) and PathFinder.find_spec("pyspark", without) is not None:
    sys.path[:] = without
    if any(place.endswith(LEAN) for place in without):
        sys.modules["numpy"] = None  # type: ignore[assignment]
