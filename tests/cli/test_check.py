"""``msgproto check FILE``: what a gateway would refuse is refused here, in the same words."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.processes import PATIENCE_SECONDS
from twisted_msgproto import cli


def test_a_good_file_is_told_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[lumberjack]\nendpoint = "tcp:0:interface=127.0.0.1"\n[queue]\ndirectory = "spool"\n'
    )
    assert cli.main(["check", str(file)]) == 0
    assert capsys.readouterr().out == "lumberjack: tcp:0:interface=127.0.0.1\nqueue: spool\n"
    assert not (tmp_path / "spool").exists()


def test_every_address_of_a_server_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[sabc]\n[mtl]\n")
    assert cli.main(["check", "--file-only", str(file)]) == 0
    told = capsys.readouterr().out
    assert "tcp:5046:interface=127.0.0.1, tcp:5047:interface=127.0.0.1 (WebSocket)\n" in told
    assert "mtl: tcp://127.0.0.1:5049, tcp://127.0.0.1:5050 (data)\n" in told


def test_a_file_without_a_queue_says_what_that_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[lumberjack]\nendpoint = "tcp:0:interface=127.0.0.1"\n')
    assert cli.main(["check", str(file)]) == 0
    assert "not on disk" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[lumberyard]", "[lumberjack]\nendpiont = 1", "["])
def test_a_bad_file_is_one_line_which_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    assert cli.main(["check", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"msgproto check: {file}: ")
    assert told.count("\n") == 1


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@contextlib.contextmanager
def taken_path(path: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        yield path


ATTEMPTS = 20
"""Another program may have a free port before we use it: then another port is tried."""


def leaves_free(file: Path, table: str) -> bool:
    """Check a file that names a free port; return whether that can be used before and after."""
    with taken_port() as port:
        pass
    file.write_text("[" + table.format(port=port))
    if cli.main(["check", str(file)]):
        return False
    deadline = time.monotonic() + PATIENCE_SECONDS / ATTEMPTS
    while time.monotonic() < deadline:  # a socket of ZeroMQ is closed a moment later
        with contextlib.suppress(OSError), socket.socket() as again:
            again.bind(("127.0.0.1", port))
            return True
    return False


def complaint(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *more: str) -> str:
    """What ``check`` says of a file that a start would refuse: one line that names the file."""
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    assert cli.main(["check", *more, str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"msgproto check: {file}: ")
    assert told.count("\n") == 1
    return told


@pytest.mark.parametrize(
    "table",
    [
        'micromsg2]\nendpoint = "tcp:{port}:interface=127.0.0.1"',
        'sabc]\nwebsocket = "tcp:{port}:interface=127.0.0.1"',
        'umq]\nendpoint = "haproxy:tcp:{port}:interface=127.0.0.1"',
        'mtl]\nendpoint = "tcp://127.0.0.1:{port}"',
        'mtl]\nendpoint = "tcp://127.0.0.1:*"\ndata-endpoint = "tcp://127.0.0.1:{port}"',
    ],
)
def test_a_port_in_use_is_named__FC_02(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    with taken_port() as port:
        text = "[" + table.format(port=port)
        told = complaint(tmp_path, capsys, text)
        assert str(port) in told and "in use" in told.lower()
        assert "choose another port" in told and "addr=" not in told
        file = tmp_path / "gateway.toml"
        assert cli.main(["check", "--file-only", str(file)]) == 0
    assert any(leaves_free(file, table) for _ in range(ATTEMPTS)), "nothing is held after a check"


def test_one_port_twice_is_refused_and_each_refusal_is_told__FC_02(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with taken_port() as port:
        free = port
    here = f"tcp:{free}:interface=127.0.0.1"
    text = f'[lumberjack]\nendpoint = ["{here}", "{here}"]\n[umq]\nendpoint = "{here}"'
    told = complaint(tmp_path, capsys, text)
    assert told.count(f"cannot listen on {here}") == 2
    assert "lumberjack: " in told and "umq: " in told


def test_a_port_beyond_all_is_refused__FC_02(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = complaint(tmp_path, capsys, '[lumberjack]\nendpoint = "tcp:99999"')
    assert "tcp:99999" in told and "65535" in told


def test_mtl_off_this_machine_wants_curve__FC_02(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = complaint(tmp_path, capsys, '[mtl]\nendpoint = "tcp://0.0.0.0:*"')
    assert "--curve-key" in told and "--insecure" in told


def test_a_unix_socket_in_use_is_refused_and_a_stale_one_is_not__FC_02(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    text = f'[lumberjack]\nendpoint = "unix:{path}"'
    with taken_path(path):
        assert str(path) in complaint(tmp_path, capsys, text)
    assert path.exists()
    assert cli.main(["check", str(tmp_path / "gateway.toml")]) == 0
    assert not path.exists()


def test_a_queue_that_is_in_use_or_cannot_be_is_refused__FC_02(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from twisted_msgproto.queue import QueueWriter

    server = '[lumberjack]\nendpoint = "tcp:0:interface=127.0.0.1"\n[queue]\n'
    queue = tmp_path / "queue"
    writer = QueueWriter(queue)
    try:
        told = complaint(tmp_path, capsys, f"{server}directory = '{queue}'")
        assert f"process {os.getpid()}" in told and str(queue) in told
        assert cli.main(["check", "--file-only", str(tmp_path / "gateway.toml")]) == 0
    finally:
        writer.close()
    below = tmp_path / "gateway.toml" / "below"
    assert str(below) in complaint(tmp_path, capsys, f"{server}directory = '{below}'")
    told = complaint(tmp_path, capsys, f"{server}directory = '{queue}'\nmax-bytes = 5000")
    assert "max-bytes is at least" in told


def test_a_password_file_that_is_missing_is_named__FC_02(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "passwords"
    told = complaint(tmp_path, capsys, f"[umq]\nauth = 'file:{missing}'")
    assert str(missing) in told and "[umq]" in told


def test_certificates_that_cannot_be_used_are_told_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-06: a file, what is wrong with it, and no library's own text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "junk.pem").write_text("junk")
    file = tmp_path / "g.toml"
    for endpoint, text in (
        ("ssl:0:privateKey=no.pem", "no.pem: No such file or directory"),
        ("ssl:0:privateKey=junk.pem", "privateKey or certKey is no PEM file with a key and a"),
        ("mtls:0:privateKey=junk.pem:verify=none", "nothing usable in junk.pem"),
    ):
        file.write_text(f'[lumberjack]\nendpoint = "{endpoint}:interface=127.0.0.1"\n')
        assert cli.main(["check", "g.toml"]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"msgproto check: g.toml: [lumberjack]: bad endpoint '{endpoint}")
        assert text in told
        assert "[(" not in told
        assert "Errno" not in told
    (tmp_path / "pems").mkdir()
    file.write_text('[lumberjack]\nendpoint = "tls:pems:0:interface=127.0.0.1"\n')
    assert cli.main(["check", "g.toml"]) == 0, "certificates may be added later"
    assert "every hand-shake is refused: the directory 'pems' has no" in capsys.readouterr().out
