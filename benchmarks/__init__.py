"""Benchmarks of the package: what a message costs in this tree, beside an earlier commit or alone.

They are not installed with the package.  A row enters where users do: it starts servers as a shell
would, speaks to them with bytes of its own making, or uses public names.  So the same row measures
commits that are far apart.
"""
