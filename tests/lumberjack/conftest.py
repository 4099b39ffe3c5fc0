"""The decoder's tests run with both forms of its inner loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from twisted_msgproto.lumberjack.wire import frames


@pytest.fixture(params=["python", "compiled"], scope="module")
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Lets the decoder use this form of its inner loops."""
    name: str = request.param
    if name == "compiled" and not frames.COMPILED:
        pytest.skip("the compiled scan was not built: pip install -e . with a C compiler at hand")
    with pytest.MonkeyPatch.context() as patch:
        if name == "python":
            patch.setattr(frames, "scan", None)
        yield name
