"""What stands in a version's file: written and read again, left out, and torn."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.tools.tables import RUN
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table.actions import (
    Commit,
    DataFile,
    Metadata,
    Proposal,
    ProtocolVersions,
    Run,
    Torn,
    commit_lines,
    landed_of,
    parse_commit,
    stamp_of,
    transactions_of,
    version_name,
)

FULL = DataFile(
    path="day=2026-01-31/ä %20.parquet",
    size=9,
    partition={"day": "2026-01-31", "hour": None},
    rows=3,
    statistics='{"numRecords":3}',
    modified=77,
)
BARE = DataFile("b.parquet", 1, {})
PROPOSAL = Proposal(
    run=RUN,
    operation="OPTIMIZE",
    added=(FULL, BARE),
    removed=(replace(BARE, path="c d.parquet"),),
    landed={"q": Landed(7, 5, 6)},
    notes={"note": 4},
    info={"seconds": 1.5},
    parameters={"mode": "Append"},
    data_change=False,
)


def test_a_version_is_read_as_it_was_written() -> None:
    """What its writer takes it for is what others read, in every field."""
    for proposal in (
        PROPOSAL,
        replace(PROPOSAL, data_change=True),
        Proposal(RUN, "WRITE"),
        Proposal(RUN, "WRITE", removed=(FULL,)),
    ):
        assert parse_commit(3, proposal.lines(99)) == proposal.as_commit(3, 99)
        assert stamp_of(proposal.lines(99)) == proposal.as_commit(3, 99).stamp
    assert parse_commit(3, PROPOSAL.lines(99)).landed == PROPOSAL.landed
    assert version_name(3) == "00000000000000000003.json"


def test_the_first_version_says_what_the_table_is() -> None:
    metadata = Metadata("id", "{}", ("day",), {"a": "b"})
    protocol = ProtocolVersions(2, 5)
    octets = commit_lines(
        timestamp=8, operation="CREATE TABLE", run=RUN, metadata=metadata, protocol=protocol
    )
    commit = parse_commit(0, octets)
    assert (commit.metadata, commit.protocol, commit.timestamp) == (metadata, protocol, 8)
    first, written_protocol, written = map(json.loads, octets.splitlines())
    assert first["commitInfo"]["isBlindAppend"] is False
    assert written_protocol == {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    assert written["metaData"]["createdTime"] == 8
    assert written["metaData"]["format"] == {"provider": "parquet", "options": {}}


def test_actions_stand_as_delta_wants_them() -> None:
    lines = list(map(json.loads, PROPOSAL.lines(99).splitlines()))
    assert [next(iter(line)) for line in lines] == [
        "commitInfo", "txn", "txn", "txn", "txn", "remove", "add", "add"
    ]  # fmt: skip
    assert lines[0]["commitInfo"] == {
        **{"timestamp": 99, "operation": "OPTIMIZE", "operationParameters": {"mode": "Append"}},
        **{"isBlindAppend": False, "engineInfo": "twisted-msgproto"},
        "msgproto": {
            **{"run": RUN.id, "host": RUN.host, "pid": RUN.pid, "operation": "OPTIMIZE"},
            **{"actions": 7, "info": {"seconds": 1.5}},
        },
    }
    assert lines[1]["txn"] == {"appId": "msgproto:q", "version": 7, "lastUpdated": 99}
    assert lines[5]["remove"] == {
        **{"path": "c%20d.parquet", "deletionTimestamp": 99, "dataChange": False},
        **{"extendedFileMetadata": True, "partitionValues": {}, "size": 1},
    }
    assert lines[6]["add"] == {
        **{"path": "day=2026-01-31/%C3%A4%20%2520.parquet", "size": 9, "modificationTime": 77},
        **{"partitionValues": dict(FULL.partition), "dataChange": False},
        "stats": FULL.statistics,
    }
    assert "stats" not in lines[7]["add"]
    appended, added = map(json.loads, Proposal(RUN, "WRITE", added=(BARE,)).lines(1).splitlines())
    assert appended["commitInfo"]["isBlindAppend"] is True
    assert added["add"]["dataChange"] is True


ADD = {"path": "a%20b", "size": 1, "partitionValues": {"day": "1"}}


@pytest.mark.parametrize(
    ("action", "name", "value"),
    [
        ({"commitInfo": {}}, "operation", ""),
        ({"commitInfo": {"operation": "MERGE"}}, "operation", "MERGE"),
        ({"commitInfo": {"operation": "A", "msgproto": {"operation": "B"}}}, "operation", "B"),
        ({"commitInfo": {"timestamp": 5}}, "timestamp", 5),
        ({"commitInfo": {"timestamp": None}}, "timestamp", 0),
        ({"commitInfo": {"operationParameters": {"a": 1}}}, "parameters", {"a": 1}),
        ({"commitInfo": {"msgproto": {}}}, "run", None),
        ({"commitInfo": {"msgproto": {"run": "r"}}}, "run", Run("r", "", 0)),
        (
            {"commitInfo": {"msgproto": {"run": "r", "host": "h", "pid": 3}}},
            "run",
            Run("r", "h", 3),
        ),
        ({"commitInfo": {"msgproto": {"info": None}}}, "info", {}),
        ({"commitInfo": {"msgproto": {"info": {"a": 1}}}}, "info", {"a": 1}),
        ({"add": ADD}, "added", (DataFile("a b", 1, {"day": "1"}),)),
        (
            {"add": {**ADD, "modificationTime": 4, "stats": None}},
            "added",
            (DataFile("a b", 1, {"day": "1"}, modified=4),),
        ),
        *(
            (
                {"add": {**ADD, "stats": text}},
                "added",
                (DataFile("a b", 1, {"day": "1"}, rows, text),),
            )
            for text, rows in (
                *(('{"numRecords":0}', 0), ('{"numRecords":"1"}', None), ("{}", None)),
                *(("{", None), ("[]", None), ("null", None)),
            )
        ),
        ({"add": ADD}, "data_change", True),
        ({"add": {**ADD, "dataChange": False}}, "data_change", False),
        ({"remove": {"path": "a%20b"}}, "removed", ("a b",)),
        ({"remove": {"path": "a", "dataChange": False}}, "data_change", False),
        ({"txn": {"appId": "x", "version": 3}}, "transactions", {"x": 3}),
        (
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}},
            "protocol",
            ProtocolVersions(3, 7),
        ),
        (
            {
                "protocol": {
                    **{"minReaderVersion": 3, "minWriterVersion": 7},
                    **{"readerFeatures": ["a"], "writerFeatures": ["b"]},
                }
            },
            "protocol",
            ProtocolVersions(3, 7, frozenset("a"), frozenset("b")),
        ),
        (
            {"metaData": {"id": "i", "schemaString": "s", "partitionColumns": None}},
            "metadata",
            Metadata("i", "s", (), {}),
        ),
        ({"unknown": {"a": 1}}, "added", ()),
    ],
)
def test_what_another_program_left_out_has_a_plain_value(
    action: dict[str, Any], name: str, value: object
) -> None:
    commit = parse_commit(3, json.dumps(action).encode() + b"\n")
    assert getattr(commit, name) == value
    usual = {"operation", "timestamp", "parameters", "run", "info", "added", "removed"}
    usual |= {"transactions", "metadata", "protocol"}
    empty = Commit(3, "", None)
    others = usual - {name, *(["operation", "info"] if "msgproto" in str(action) else [])}
    assert {one: getattr(commit, one) for one in others - {"added", "removed"}} == {
        one: getattr(empty, one) for one in others - {"added", "removed"}
    } or name == "data_change"


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (b"", "it is empty"),
        (b"\0\0 \r\n", "it is empty"),
        (b"{}\n{", "a line of it is cut"),
        (b"[]\n", "a line of it is not an action"),
        (b'{"add":{"size":1}}\n', "it holds an action without 'path'"),
        (b'{"txn":{"appId":"x"}}\n', "it holds an action without 'version'"),
        (b'{"commitInfo":{"msgproto":{"actions":1}}}\n', "it holds 0 of 1 actions"),
        (b'{"commitInfo":{"msgproto":{"actions":0}}}\n{}\n', "it holds 1 of 0 actions"),
    ],
)
def test_a_version_of_which_a_part_is_lost_is_torn(octets: bytes, text: str) -> None:
    with pytest.raises(Torn) as told:
        parse_commit(3, octets)
    assert str(told.value) == text


def test_what_a_version_did_is_a_change_of_rows_unless_it_says_otherwise() -> None:
    for usual in (Commit(3, "", None), Proposal(RUN, "WRITE")):
        assert usual.data_change is True


def test_a_version_that_counts_its_actions_is_whole_with_as_many() -> None:
    octets = b'{"commitInfo":{"msgproto":{"actions":1}}}\n\n{"x":{}}\n'
    assert parse_commit(3, octets) == Commit(3, "", None, data_change=False)


@pytest.mark.parametrize(
    ("octets", "stamp"),
    [
        (b"", ("", "", 0)),
        (b'{"add":{}}\n', ("", "", 0)),
        (b'{"add":{}}\n{"commitInfo":{"operation":"A","timestamp":3}}\n', ("", "A", 3)),
        (b'{ "commitInfo" : {"msgproto":{"run":"r","operation":"B"}}}', ("r", "B", 0)),
        (b'{"commitInfo":null}\n', ("", "", 0)),
        (b'{"add":{"path":"' + b"x" * 40 + b'\\"commitInfo\\""}}\n', ("", "", 0)),
    ],
)
def test_a_versions_stamp_is_what_its_writer_says_of_itself__TB_05(
    octets: bytes, stamp: tuple[str, str, int]
) -> None:
    assert stamp_of(octets) == stamp


def test_a_stamp_that_is_cut_is_torn__TB_05() -> None:
    with pytest.raises(Torn):
        stamp_of(b'{"commitInfo":{"oper')


def test_places_are_three_transactions_and_those_of_others_are_none() -> None:
    landed = {"q": Landed(7, 5, 6), "": Landed(1)}
    transactions = transactions_of(landed)
    assert transactions["msgproto-incarnation:q"] == 5
    assert landed_of({**transactions, "other": 9}) == {"q": Landed(7, 5, 6)}
    assert landed_of({"msgproto:q": 7}) == {"q": Landed(7, 0, 0)}


@pytest.mark.parametrize(
    ("change", "became"),
    [
        ({}, True),
        ({"run": replace(RUN, id="other")}, False),
        ({"run": None}, False),
        ({"landed": {"q": Landed(8, 5, 6)}}, False),
    ],
)
def test_a_proposal_knows_what_became_of_it__TB_11(change: dict[str, Any], became: bool) -> None:
    commit = PROPOSAL.as_commit(3, 1)
    if "landed" in change:
        commit = replace(commit, transactions=transactions_of(change["landed"]))
    else:
        commit = replace(commit, **change)
    assert PROPOSAL.became(commit) is became
