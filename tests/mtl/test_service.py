"""``twistd mtl``, ``msgproto send|recv mtl``: options, one-line errors, keys in files."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any

import pytest
import zmq
import zmq.auth
from twisted.python import usage

from tests.tools.processes import Launcher
from twisted_msgproto.cli import clients
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.mtl import command, service, zeromq
from twisted_msgproto.net import endpoints


def options(*words: str) -> service.Options:
    read = service.Options()
    read.read(list(words))
    return read


def test_the_defaults_are_on_this_machine__MT_12__MT_31() -> None:
    read = options()
    assert read["endpoints"] == ["tcp://127.0.0.1:5049"]
    assert read["data-endpoint"] == "tcp://127.0.0.1:5050"
    assert (read.curve(), read["virtual-host"]) == (None, [])
    assert options(*("--virtual-host", "a") * 2)["virtual-host"] == ["a", "a"]


@pytest.mark.parametrize(
    ("control", "data"),
    [
        ("tcp://127.0.0.1:6000", "tcp://127.0.0.1:6001"),
        ("tcp://[::1]:6000", "tcp://[::1]:6001"),
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:*"),
        ("tcp://127.0.0.1:65535", "tcp://127.0.0.1:*"),
        ("ipc:///tmp/x", None),
    ],
)
def test_data_goes_to_the_next_port__MT_12(control: str, data: str | None) -> None:
    assert zeromq.data_endpoint([control]) == data
    assert options("-e", control)["data-endpoint"] == data
    assert options("-e", control, "--one-socket")["data-endpoint"] is None
    other = "tcp://127.0.0.1:7"
    assert options("-e", control, "--data-endpoint", other)["data-endpoint"] == other


def test_several_endpoints_share_a_data_port_which_is_none_of_theirs__HO_25__MT_12() -> None:
    both = ["tcp://127.0.0.1:6000", "tcp://127.0.0.2:6001"]
    assert zeromq.data_endpoint(both) == "tcp://127.0.0.1:6002"
    assert zeromq.data_endpoint([*both, "ipc:///tmp/x"]) is None
    assert zeromq.data_beside(both, "tcp://127.0.0.1:7") == [
        "tcp://127.0.0.1:7",
        "tcp://127.0.0.2:7",
    ]
    assert zeromq.data_beside(both, "tcp://0.0.0.0:7") == ["tcp://0.0.0.0:7"]
    assert zeromq.data_beside(["tcp://*:6000", *both], "tcp://127.0.0.1:7") == ["tcp://*:7"]
    assert zeromq.data_beside(["tcp://[::1]:6000"], "tcp://[::1]:*") == ["tcp://[::1]:*"]
    assert zeromq.data_beside(both, "ipc:///tmp/x") == ["ipc:///tmp/x"]
    tcp, ipc = "tcp://h:1", "ipc://x:1"
    for address, port, moved in ((tcp, 5, "tcp://h:5"), (tcp, 0, tcp), (ipc, 5, ipc)):
        assert zeromq.with_port(address, port) == moved


@pytest.mark.parametrize(
    "words",
    [
        ["-e", "tcp:5049"],
        ["--data-endpoint", "127.0.0.1:5"],
        ["--one-socket", "--data-endpoint", "tcp://127.0.0.1:5"],
        ["--curve-key", "x"],
        ["--curve-authorized", "x"],
        ["--limit", "prefetch=0"],
        ["--auth", "nothing:x"],
        ["--auth", "file:/nonexistent/passwords"],
    ],
)
def test_a_usage_error_is_one_line__MT_29__MT_31(words: list[str]) -> None:
    with pytest.raises(usage.UsageError) as caught:
        options(*words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("curve-key", "k", "/etc/k"), ("curve-authorized", "/k", "/k"),
        ("endpoint", "ipc://x", "ipc:///etc/x"), ("data-endpoint", "ipc://x/y", "ipc:///etc/x/y"),
        ("endpoint", "ipc://@x", "ipc://@x"), ("endpoint", "ipc://*", "ipc://*"),
        ("endpoint", "ipc://", "ipc://"), ("data-endpoint", "tcp://h:1", "tcp://h:1"),
        ("virtual-host", "x", "x"),
    ],
)  # fmt: skip
def test_paths_in_a_file_are_those_of_its_directory(key: str, value: str, found: str) -> None:
    assert service.Options.located(key, value, "/etc") == found


def test_what_others_reach_without_curve_is_told__MT_31(tmp_path: Path) -> None:
    off, here = "tcp://*:5", "tcp://127.0.0.1:6"
    for control, data, told in ((off, here, [off]), (here, off, [off]), (here, here, [])):
        words = ["-e", control, "--data-endpoint", data, "--insecure"]
        read = options(*words)
        assert [line.partition(" is open to other")[0] for line in read.exposures()] == told
        assert read.listenAddresses() == [control, f"{data} (data)"]
        keyed = options(*words, "--curve-key", "k", "--curve-authorized", "a")
        assert (keyed.exposures(), keyed.authWarning(), not read.authWarning()) == ([], None, False)


def test_addresses_that_cannot_be_had_are_told_and_the_others_held() -> None:
    held = endpoints.Held()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # nobody else has it on any address meanwhile
        names = [f"tcp://127.0.0.{number}:{port}" for number in (2, 1)]
        (line,) = service.try_addresses(names, held)
        assert line.startswith(f"cannot listen on {names[1]}: ")
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.2", port))
        held.close()
        socket.create_server(("127.0.0.2", port)).close()


# ── keys ────────────────────────────────────────────────────────────────────────────────────────


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    """MT-31: a line each, with or without a name, or certificates of pyzmq's."""
    pairs = [zmq.curve_keypair() for _ in range(3)]
    server = tmp_path / "server"
    server.write_bytes(pairs[0][1] + b"\n")
    clients = tmp_path / "clients"
    clients.write_bytes(
        b"# who may connect\n\n%b robot one # in the cellar\n  %b\n" % (pairs[1][0], pairs[2][0])
    )
    curve = options("--curve-key", str(server), "--curve-authorized", str(clients)).curve()
    assert curve is not None
    assert curve.secret == pairs[0][1]
    assert curve.authorized == {pairs[1][0]: "robot one", pairs[2][0]: pairs[2][0].decode()}
    with clients.open("ab") as more:
        more.write(b"%b robot two\n" % pairs[1][0])
    with pytest.raises(ConfigurationError, match="line 5: this key has the name 'robot one' above"):
        options("--curve-key", str(server), "--curve-authorized", str(clients)).curve()
    zmq.auth.create_certificates(tmp_path, "made")
    public = zeromq.read_key(str(tmp_path / "made.key_secret"))
    assert zmq.curve_public(zeromq.read_secret_key(str(tmp_path / "made.key_secret"))) == public
    assert zeromq.read_key(str(tmp_path / "made.key")) == public


@pytest.mark.parametrize("text", [b"", b"short", b"\xff" * 40, b"#" * 39, b"a" * 39 + b" "])
def test_what_is_no_key_is_said_in_one_line__MT_31(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(text)
    for read in (zeromq.read_secret_key, zeromq.read_key, zeromq.read_authorized_keys):
        with pytest.raises(ConfigurationError) as caught:
            read(str(file))
        assert str(file) in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"cannot read .*: No such file"):
        zeromq.read_key(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("tcp://127.0.0.1:5", True), ("tcp://127.9.9.9:*", True), ("tcp://[::1]:5", True),
        ("tcp://localhost:5", True), ("ipc://x", True),
        ("tcp://*:5", False), ("tcp://0.0.0.0:5", False), ("tcp://[::]:5", False),
        ("tcp://10.0.0.1:5", False), ("tcp://broker:5", False), ("tcp://eth0:5", False),
    ],
)  # fmt: skip
def test_which_addresses_only_this_machine_can_reach__MT_31(address: str, local: bool) -> None:
    zeromq.check_address(address)
    assert zeromq.is_local(address) is local


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, ("msgproto", "ingest", "messages")),
        ("orders", ("msgproto", "ingest", "orders")),
        ("queue/orders", ("msgproto", "queue", "orders")),
        ("shop/queue/orders/new", ("shop", "queue", "orders/new")),
    ],
)
def test_destinations(text: str | None, found: tuple[str, str, str]) -> None:
    assert command.destination(text, "ingest") == found


@pytest.mark.parametrize(
    ("endpoint", "found", "reached"),
    [
        ("tcp://six:5049", ["2001:db8::1"], "tcp://[2001:db8::1]:5049"),
        ("tcp://both:5049", ["2001:db8::1", "192.0.2.1"], "tcp://both:5049"),
        ("tcp://[::1]:5049", ["::1"], "tcp://[::1]:5049"),
        ("ipc:///tmp/x:1", [], "ipc:///tmp/x:1"),
    ],
)
def test_a_name_with_addresses_of_ipv6_alone_is_reached(
    endpoint: str, found: list[str], reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answered: libzmq had looked for an address of IPv4."""
    known = [(AF_INET6 if ":" in one else AF_INET, None, None, "", (one, 0)) for one in found]
    monkeypatch.setattr(command, "getaddrinfo", lambda host, port: known)
    assert command.reachable(endpoint) == reached


@pytest.mark.parametrize(
    ("verb", "more"), [("send", {"window", "properties"}), ("recv", {"ready"})]
)
def test_each_command_takes_the_options_that_mtl_has(verb: str, more: set[str]) -> None:
    taken = {"destination", "user", "password", "tls_ca", "tls_key"} | more
    for name, flag in clients.FLAGS.items():
        told: Any = contextlib.nullcontext()
        if name not in taken:
            told = pytest.raises(ConfigurationError, match=f"{verb} mtl has no {flag}")
        with told:
            clients.check_options("mtl", command, verb, {name: "x"})


# ── processes ───────────────────────────────────────────────────────────────────────────────────


def last_json(text: str) -> Any:
    return json.loads(text.strip().splitlines()[-1])


def test_send_and_recv_with_curve_and_a_password(launch: Launcher, tmp_path: Path) -> None:
    """MT-08, MT-31: off loopback, as docs/protocols/mtl.md has it."""
    (server_public, server_secret), (public, secret) = zmq.curve_keypair(), zmq.curve_keypair()
    for name, octets in (
        ("server.public", server_public), ("server.secret", server_secret),
        ("client.secret", secret), ("clients.keys", public + b" robot\n"),
        ("password", b"secret\n"), ("wrong", b"wrong\n"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(octets)
    server = launch(
        *("mtl", "-e", "tcp://*:*", "--one-socket", "--auth", "memory:me:secret"),
        *("--curve-key", "server.secret", "--curve-authorized", "clients.keys"),
        *("--queue", "queue", "--limit", "login-delay=0.1"),
        module="twisted",
    )
    address = f"tcp://127.0.0.1:{server.port('mtl')}"
    keys = ("--tls-ca", "server.public", "--tls-key", "client.secret", "--user", "me")
    there = (address, "--destination", "queue/orders", *keys)
    sent = launch.run(
        *("send", "mtl", *there, "--count", "700", "--json", "--password-file", "password")
    )
    assert sent.returncode == 0, sent.stderr
    assert last_json(sent.stdout)["acknowledged"] == 700
    got = launch.run(
        *("recv", "mtl", *there, "--count", "700", "--json", "--password-file", "password")
    )
    assert got.returncode == 0, got.stderr
    rows = [json.loads(line) for line in got.stdout.splitlines()]
    assert [row["destination"] for row in rows] == ["orders"] * 700
    assert len({row["body"] for row in rows}) == 700
    assert "read again: mtl: keys of" in launch.run("reload", "queue").stdout
    refused = launch.run("send", "mtl", *there, "--count", "1", "--password-file", "wrong")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("msgproto send: nothing was sent: ")
    dumped = launch.run("queue", "dump", "queue")
    assert {json.loads(line)["client_id"] for line in dumped.stdout.splitlines()} == {"me"}


def test_send_says_where_contents_went_and_which_limit_is_in_the_way__RD_31__RD_44(
    launch: Launcher,
) -> None:
    """MT-26, MT-29, RD-31, RD-44: in the line that counts; the queue is there afterwards."""
    server = launch(
        *("mtl", "-e", "tcp://127.0.0.1:*", "--limit", "content-bytes=1000"), module="twisted"
    )

    def send(*words: str) -> tuple[str, str]:
        address = f"tcp://127.0.0.1:{server.port('mtl')}"
        sent = launch.run("send", "mtl", address, "--count", "1", *words)
        return sent.stdout, sent.stderr

    new = "the broker had no queue orders: it was made, and nobody consumes it"
    to = "--destination"
    assert send(to, "queue/orders")[0].endswith(f"/s); {new}\n")
    assert send(to, "queue/orders")[0].endswith("/s)\n")
    told = last_json(send(to, "queue/others", "--json")[0])["notes"]
    assert told == [new.replace("orders", "others")]
    assert "notes" not in last_json(send(to, "queue/orders", "--json")[0])
    _, error = send("--size", "1001")
    assert error.splitlines()[-1] == (
        "msgproto send: 0 of 1 messages were acknowledged: a content of 1001 bytes in one frame"
        " is too large: the server's content-bytes is 1000"
    )


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ipc:///no/such/directory/x", "make its directory first"),
        (f"ipc:///tmp/{'x' * 120}", "is longer than 107 characters"),
    ],
)
def test_where_nobody_can_listen_is_said_in_one_line(address: str, says: str) -> None:
    told = pytest.raises(ConfigurationError, match=f"cannot listen on {address}: .*{says}")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket, told:
        zeromq.bind(socket, address)


def test_what_cannot_be_is_said_in_one_line(launch: Launcher) -> None:
    """MT-31"""
    server = launch("mtl", "-e", "tcp://*:*", module="twisted")
    assert server.wait() != 0
    assert "--insecure" in server.lines[-1]
    assert "Traceback" not in server.output
    exposed = launch("mtl", "-e", "tcp://*:*", "--insecure", module="twisted")
    exposed.line(r"tcp://\*:\* is open to other machines without CURVE")
