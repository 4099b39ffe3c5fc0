"""Building blocks which everything shares (floor 0).  They import the standard library only.

They are pure, but for :mod:`.disk` and :mod:`.log_output`.
"""
