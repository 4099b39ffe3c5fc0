"""MTL's frames are in :mod:`.control` (JSON requests), :mod:`.data` (headers), :mod:`.fields`
(tables).

No state, no role, no clock.
"""
