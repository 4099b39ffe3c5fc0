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


@pytest.fixture
def table(local: Table) -> Table:
    return local


def table_in(request: pytest.FixtureRequest) -> Table:
    """A table on a disk, or in an object store, which only then is started."""
    if request.param == "local":
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
