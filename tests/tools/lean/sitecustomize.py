"""Makes the Python workers of tests' Spark sessions import pyspark from where it is installed.

Spark puts archives in front of their path: the sources of pyspark, which each start would compile
anew (0.45 s of CPU time), and a jar, whose thousands of names Python would read twice (0.3 s).  A
session starts up to six such processes.
"""

import sys
from importlib.machinery import PathFinder

ARCHIVES = ("/pyspark.zip", "-src.zip", ".jar")

without = [place for place in sys.path if not place.endswith(ARCHIVES)]
if len(without) < len(sys.path) and PathFinder.find_spec("pyspark", without) is not None:
    sys.path[:] = without
