"""What a log's folder says before anything of it is read, and errors of stores on one line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from twisted_msgproto.core.errors import TableError
from twisted_msgproto.table import snapshot
from twisted_msgproto.table.actions import Commit, DataFile, Metadata, ProtocolVersions
from twisted_msgproto.table.snapshot import ERROR_LINE_MAX, Base, State, list_log, load, one_line


class Names:
    """A log of these names, and what is read under some of them."""

    local = True
    location = "/table"

    def __init__(self, names: Sequence[str], contents: dict[str, bytes | OSError] | None = None):
        self._names = list(names)
        self._contents = contents or {}

    def log_names(self) -> list[str]:
        return self._names

    def read(self, path: str) -> bytes:
        found = self._contents.get(path.removeprefix("_delta_log/"))
        if isinstance(found, OSError):
            raise found
        if found is None:
            raise FileNotFoundError(path)
        return found


class Refusing(Names):
    """A log whose folder cannot be listed."""

    def log_names(self) -> list[str]:
        raise OSError("refused")


def version(number: int) -> str:
    return f"{number:020d}.json"


def checkpoint(number: int, part: int = 0, parts: int = 0) -> str:
    return f"{number:020d}.checkpoint{f'.{part:010d}.{parts:010d}' if parts else ''}.parquet"


@pytest.mark.parametrize(
    ("names", "versions", "checkpoints", "newest"),
    [
        ([], (), {}, -1),
        ([version(1), version(0)], (0, 1), {}, 1),
        ([checkpoint(7)], (), {7: 1}, 7),
        ([version(8), checkpoint(7), version(7)], (7, 8), {7: 1}, 8),
        ([version(6), checkpoint(7)], (6,), {7: 1}, 7),
        ([checkpoint(7, 1, 2), checkpoint(7, 2, 2)], (), {7: 2}, 7),
        ([checkpoint(7, 1, 2)], (), {}, -1),
        ([checkpoint(9, 1, 2), checkpoint(7)], (), {7: 1}, 7),
        ([checkpoint(9), checkpoint(7)], (), {7: 1, 9: 1}, 9),
        ([checkpoint(7, 1, 1)], (), {7: 1}, 7),
        (["_last_checkpoint", "x.json", version(3) + ".tmp", "1.json"], (), {}, -1),
    ],
)
def test_a_log_has_versions_and_whole_checkpoints(
    names: list[str], versions: tuple[int, ...], checkpoints: dict[int, int], newest: int
) -> None:
    listing = list_log(Names(names))  # type: ignore[arg-type]
    assert (listing.versions, listing.newest) == (versions, newest)
    assert [(number, len(parts)) for number, parts in listing.checkpoints] == [*checkpoints.items()]
    assert all(parts == tuple(sorted(parts)) for _, parts in listing.checkpoints)
    assert listing.exists == bool(versions or checkpoints)


def test_a_state_goes_on_version_by_version() -> None:
    """Files are followed once they are known."""
    metadata, protocol = Metadata("i", "s", (), {}), ProtocolVersions(1, 2)
    a, b = DataFile("a", 1, {}), DataFile("b", 1, {})
    first = Commit(0, "", None, added=(a,), metadata=metadata, protocol=protocol)
    second = Commit(1, "", None, added=(b,), removed=("a", "c"), transactions={"t": 1})
    third = Commit(2, "", None, transactions={"t": 3, "u": 1})
    for files in (None, {}):
        state = State(files=files)
        for commit in (first, second, third):
            state.apply(commit)
        assert (state.version, state.metadata, state.protocol) == (2, metadata, protocol)
        assert state.transactions == {"t": 3, "u": 1}
        assert state.files == (None if files is None else {"b": b})


FIRST = (
    b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'
    b'{"metaData":{"id":"i","schemaString":"s","partitionColumns":[]}}\n'
)


def loadable(*contents: bytes | OSError | None) -> Names:
    """A log with these versions: None is listed and gone when it is read."""
    names = [version(number) for number in range(len(contents))]
    pairs = zip(names, contents, strict=True)
    return Names(names, {name: found for name, found in pairs if found is not None})


@pytest.mark.parametrize(
    ("storage", "until", "text"),
    [
        (Refusing([]), None, "cannot read /table: refused"),
        (Names([]), None, "/table is not a table: it has no _delta_log"),
        (loadable(FIRST, OSError("broken")), None, "cannot read /table: broken"),
        (
            loadable(FIRST, None),
            None,
            "version 1 of /table went while its log was read; try again",
        ),
        (loadable(FIRST, b"{"), None, "version 1 of /table is torn: a line of it is cut; if it"),
        (loadable(b"{}\n", b"{}\n"), None, "the log of /table names no table up to version 1"),
        (loadable(FIRST.split(b"\n")[0]), 0, "the log of /table names no table up to version 0"),
        (loadable(FIRST.split(b"\n")[1]), 0, "the log of /table names no table up to version 0"),
        (Names([version(0), version(2)]), None, "the log of /table lacks version 1; restore the"),
        (Names([version(1)]), None, "the log of /table lacks version 0; restore the"),
        (loadable(FIRST), 1, "the log of /table lacks version 1; restore the"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_line(
    storage: Names, until: int | None, text: str
) -> None:
    with pytest.raises(TableError) as told:
        load(storage, until=until)  # type: ignore[arg-type]
    assert str(told.value).startswith(text)


@pytest.mark.parametrize(("until", "count"), [(None, 3), (2, 3), (1, 2), (0, 1)])
def test_a_log_is_read_up_to_a_version(until: int | None, count: int) -> None:
    storage = loadable(FIRST, b'{"txn":{"appId":"t","version":5}}\n', b"{}\n")
    loaded = load(storage, until=until, files=count == 2)  # type: ignore[arg-type]
    assert [commit.version for commit in loaded.commits] == list(range(count))
    assert (loaded.state.version, loaded.base) == (count - 1, Base(-1, ()))
    assert loaded.state.transactions == ({"t": 5} if count > 1 else {})
    assert loaded.state.files == ({} if count == 2 else None)


@pytest.mark.parametrize(
    ("checkpoints", "torn", "versions", "until", "base"),
    [
        ([4], [], [5, 6], None, 4),  # the checkpoint's own version may be gone
        ([4], [], [4, 5, 6], None, 4),
        ([4], [], [6], None, "lacks version 0;"),
        ([4], [], [], None, 4),
        ([4, 6], [6], [5], None, "lacks version 0; checkpoint 6 cannot be read (it is torn);"),
        ([4, 6], [], [5, 6, 7], None, 6),
        ([4, 6], [6], [5, 6, 7], None, 4),
        ([4, 6], [], [5, 6, 7], 6, 6),
        ([4, 6], [], [5, 6, 7], 5, 4),
        ([4, 6], [], [5, 6, 7], 4, 4),
        ([4, 6], [], range(8), 3, -1),
        ([4], [4], range(8), None, -1),
        ([4], [4], [5, 6], None, "lacks version 0; checkpoint 4 cannot be read (it is torn);"),
        (
            [2, 4],
            [2, 4],
            [3, 4, 5],
            None,
            "lacks version 0; checkpoint 4 cannot be read (it is torn);",
        ),
    ],
)
def test_a_log_begins_at_the_newest_checkpoint_behind_which_nothing_is_missing(
    checkpoints: list[int],
    torn: list[int],
    versions: Sequence[int],
    until: int | None,
    base: int | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata, protocol = Metadata("i", "s", (), {}), ProtocolVersions(1, 2)

    def read(storage: object, number: int, names: Sequence[str], *, files: bool) -> State:
        if number in torn:
            raise OSError("it is torn")
        return State(number, metadata, protocol, files={} if files else None)

    monkeypatch.setattr(snapshot, "read_checkpoint", read)
    contents: dict[str, bytes | OSError] = {
        version(number): FIRST if number == 0 else b"{}\n" for number in versions
    }
    storage = Names([*contents, *map(checkpoint, checkpoints)], contents)
    if isinstance(base, str):
        with pytest.raises(TableError) as told:
            load(storage, until=until)  # type: ignore[arg-type]
        assert base in str(told.value)
        return
    for files in (False, True):
        loaded = load(storage, until=until, files=files)  # type: ignore[arg-type]
        names = (checkpoint(base),) if base >= 0 else ()
        assert loaded.base == Base(base, names)
        newest = max([*versions, *checkpoints]) if until is None else until
        assert [one.version for one in loaded.commits] == list(range(base + 1, newest + 1))
        assert (loaded.state.version, loaded.state.files) == (newest, {} if files else None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("two\n  lines", "two lines"),
        ("<Error><Code>No</Code><Message>it is\nnot</Message></Error>", "No: it is not"),
        ("<Error><Code>No</Code></Error>", "No"),
        ("<Message>alone</Message>", "<Message>alone</Message>"),
        ("\x1b[31;1mred\x1b[0m ↳ why", "red why"),
        ("x" * 301, "x" * ERROR_LINE_MAX),
        ("", "OSError"),
    ],
)
def test_what_a_store_says_is_one_line_without_its_markup(text: str, line: str) -> None:
    assert one_line(OSError(text)) == line
