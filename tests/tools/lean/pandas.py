"""Stands in front of pandas on the path of processes which tests start: they are without it.

No extra of the package brings pandas but ``test``.  Arrow imports it as soon as it is there: 0.3 s
of CPU time and 35 MB in each of the run's hundreds of processes.
"""

raise ImportError("the processes of tests are without pandas; see tests/tools/processes.py")
