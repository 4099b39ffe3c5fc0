from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.tables import TABLE_SCHEMA
from twisted_msgproto.table.log import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "table", TABLE_SCHEMA)
