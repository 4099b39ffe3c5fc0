"""The decoder's tests run with both forms of its inner loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from twisted_msgproto.lumberjack.wire import scan


@pytest.fixture(params=["python", "compiled"], scope="module")
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Lets the decoder use this form of the loops in scan.py."""
    name: str = request.param
    if name == "compiled" and not scan.COMPILED:
        pytest.skip("the compiled scan was not built: pip install -e . with a C compiler at hand")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "json_run", getattr(scan, f"json_run_{name}"))
        patch.setattr(scan, "data_run", getattr(scan, f"data_run_{name}"))
        yield name
