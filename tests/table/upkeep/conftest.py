"""Gateways and landed tables, on a disk and in an object store, for what looks after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.s3 import Store
from tests.tools.upkept import Gateway, create
from twisted_msgproto.table.log import Table


@pytest.fixture
def store(s3: Store) -> Store:
    return s3


@pytest.fixture
def local(tmp_path: Path) -> Table:
    """A table on a disk."""
    return create(tmp_path / "table")


@pytest.fixture(params=["local", "s3"])
def table(request: pytest.FixtureRequest, local: Table, store: Store) -> Table:
    """A table on a disk, and one in an object store."""
    if request.param == "local":
        return local
    return create(store.new_location(), storage=store.options)


@pytest.fixture
def a(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path / "a")


@pytest.fixture
def b(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path / "b")
