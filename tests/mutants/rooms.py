"""The table of the rooms: what is mutated and measured, and the quick tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]

OPTIONS = ("--same", "--worlds", "80", "--fuzz", "1000")
"""pytest's options: nothing is fresh in a run, and a part of what is random is enough."""


@dataclass(frozen=True)
class Room:
    """One room of the table.

    ``modules`` are files and directories below ``twisted_msgproto``; ``tests`` are pytest's
    arguments; ``deselected`` is an expression for pytest's ``-k``: what needs long, or processes of
    its own, is left out.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    deselected: str = ""

    def files(self, root: Path) -> list[Path]:
        """Return the room's files with code, as paths relative to ``root``, in order."""
        package = root / "twisted_msgproto"
        found: set[Path] = set()
        for module in self.modules:
            place = package / module
            found.update(place.rglob("*.py") if place.is_dir() else [place])
        return sorted(file.relative_to(root) for file in found)


def _tests(directory: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{directory}/test_{name}.py" for name in names.split())


STATES = "tests/states/test_states.py::test_nothing_goes_wrong_whatever_happens_to_both_sides"
STREAMS = (
    "tests/fuzz/test_fuzz.py::test_spoiled_streams_give_documented_faults_however_they_are_cut"
)
WORLDS = "tests/sim/test_worlds.py::test_nothing_acknowledged_is_lost_in_any_world"
BROKER = "tests/sim/test_broker.py::test_a_broker_is_a_list_for_each_queue_whatever_happens"


def _random(states: str = "", worlds: str = "", streams: str = "") -> tuple[str, ...]:
    """Return the tests of random pairs, worlds and spoiled streams that a room has."""
    return (
        *(f"{STATES}[{name}]" for name in states.split()),
        *(f"{WORLDS}[{name}-0]" for name in worlds.split()),
        *(f"{STREAMS}[{name}-0]" for name in streams.split()),
    )


def _protocol(name: str, modules: str, tests: str, streams: str, deselected: str = "") -> Room:
    return Room(
        tuple(f"{name}/{module}" for module in modules.split()),
        _tests(name, tests) + _random(name, name, streams),
        deselected,
    )


ROOMS: dict[str, Room] = {
    "core": Room(
        ("core",), ("tests/core", BROKER, *_random(streams="json-slices")), "another_version"
    ),
    "lumberjack": _protocol(
        "lumberjack",
        "wire machine terms.py",
        "figures machine machine_edges wire writer scan slices",
        "lumberjack lumberjack-acks",
        "bomb or both_forms or end_a_turn or large_batches",
    ),
    "micromsg2": _protocol(
        "micromsg2",
        "wire machine terms.py",
        "acks client extensions figures frames handshake hooks ingest inspection kept machine_edges"
        " parts queues sending serving session subscriptions texts",
        "micromsg2",
        "takes_in_memory",  # under coverage other things take memory, too
    ),
    "sabc": _protocol(
        "sabc",
        "wire machine terms",
        "answers by_hand ends figures framing held machine machine_edges many messages parts"
        " lines safety streams wire",
        "sabc sabc-websocket",
        "holds_nothing or not_held",  # under coverage other things take memory, too
    ),
    "umq": _protocol(
        "umq",
        "wire.py machine terms",
        "figures kept machine machine_attachments machine_calls machine_edges machine_handshake"
        " machine_sessions machine_topics wire",
        "umq",
    ),
    "mtl": _protocol(
        "mtl",
        "wire machine terms",
        "addresses backpressure client client_flow connections false_servers figures honest_confirm"
        " kept limits_of_a_client machine_edges reading server_control server_data server_profiles"
        " server_readers server_writers slices wire",
        "mtl-control mtl-data",
    ),
    "link": Room(
        (
            *("net/link.py", "net/session.py", "net/outbox.py", "net/sink.py"),
            *("net/backpressure.py", "net/wires"),
        ),
        (
            *("tests/net/test_link.py", "tests/net/test_link_edges.py"),
            *("tests/net/test_outbox.py", "tests/net/test_output.py"),
            *("tests/net/test_sink.py", "tests/net/test_backpressure.py"),
            *("tests/net/test_websocket.py", "tests/net/test_websocket_edges.py"),
            *("tests/net/test_websocket_cases.py", "tests/net/test_keepalive.py"),
            *("tests/net/test_timer.py", "tests/net/test_turns.py", "tests/net/test_stopping.py"),
            *("tests/contract/test_sessions.py", "tests/contract/test_ends.py"),
            *("tests/contract/test_flow.py", "tests/sabc/test_websocket.py"),
            *("tests/net/test_proxied.py", "tests/net/test_records.py", "tests/net/test_tls.py"),
            "tests/contract/test_hostile_servers.py",
            *_random(worlds="lumberjack", streams="websocket"),
        ),
    ),
    "neighbours": Room(
        (
            *("net/ledger.py", "net/room.py", "net/tls.py", "net/turns.py", "net/traffic.py"),
            *("net/memory.py", "net/offenders.py", "net/peerlog.py", "umq/protocol/serving.py"),
        ),
        (
            *_tests("net", "factory ledger memory peerlog proxied records status_parts tls"),
            *_tests("net", "traffic turns"),
            *_tests("contract", "bounds ends sessions"),
            *_tests("umq", "serving storing subscriptions topics"),
        ),
    ),
    "queue": Room(
        ("queue",),
        ("tests/queue", *_random("bridge", "lumberjack micromsg2")),
        "test_processes or test_every_octet",
    ),
    "table": Room(
        (
            *("table/log.py", "table/local_commit.py", "table/snapshot.py", "table/actions.py"),
            *("table/checkpoint.py", "table/storage.py", "table/properties.py"),
        ),
        (
            *("tests/table/test_log.py", "tests/table/test_local_commits.py"),
            *("tests/table/test_storage.py", "tests/table/test_readers.py"),
            *("tests/table/test_properties.py", "tests/table/test_starting.py"),
            *("tests/table/test_torn.py", "tests/table/test_actions.py"),
            *("tests/table/test_snapshot.py", "tests/table/test_local_steps.py"),
            *("tests/table/test_one_writer.py", *_random("bridge")),
        ),
    ),
    "spark": Room(
        (
            *("spark/options.py", "spark/edges.py", "spark/ranges.py", "spark/opening.py"),
            *("spark/filters.py", "spark/offsets.py", "spark/gateways.py", "spark/flight.py"),
            *("spark/marks.py", "spark/report.py", "spark/lateness.py", "spark/loop.py"),
            *("spark/crew.py", "spark/releasing.py"),
        ),
        _tests(
            "spark",
            "bridge_failures bridge_loop bridge_options crew filters flight gateways lateness"
            " offsets releasing report source",
        ),
        "WithSpark",
    ),
}
