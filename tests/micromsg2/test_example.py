"""The example of a vendor's extension runs as its page says."""

import sys

import pytest

from tests.tools.processes import PROJECT, Launcher


@pytest.mark.slow
def test_a_vendors_extension_needs_nothing_from_inside_the_package(launch: Launcher) -> None:
    """MM-10: frames, fields, a command and an answer, over a real socket"""
    example = PROJECT / "examples" / "micromsg2" / "traced.py"
    ended = launch.command([sys.executable, str(example)])
    assert ended.wait() == 0, ended.output
    assert ended.lines == [
        "orders: b'first' asked for by ann",
        "orders: b'second' asked for by ben",
        "orders: b'third' asked for by None",
        "traces seen by the server: 2",
    ]
