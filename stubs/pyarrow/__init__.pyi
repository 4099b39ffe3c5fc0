# pyarrow has no types of its own: everything but the bases of our classes is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
