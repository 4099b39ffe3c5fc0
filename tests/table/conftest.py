"""Gateways and landed tables, on a disk and in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.s3 import Store
from tests.tools.tables import Gateway
from tests.tools.tables import create_table as create
from twisted_msgproto.table.delta_table import Table


@pytest.fixture
def local(tmp_path: Path) -> Table:
    """A table on a disk."""
    return create(tmp_path / "table")


s3 = pytest.param("s3", marks=pytest.mark.slow)
"""What a disk says in a quick test as well, said again by a real server."""

both = pytest.mark.parametrize("table", ["local", s3], indirect=True)


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """A table on a disk, or for ``both`` in an object store, which only then is started."""
    if getattr(request, "param", "local") == "local":
        local: Table = request.getfixturevalue("local")
        return local
    store: Store = request.getfixturevalue("s3")
    return create(store.new_location(), storage=store.options)


@pytest.fixture
def a(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path / "a")


@pytest.fixture
def b(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path / "b")
