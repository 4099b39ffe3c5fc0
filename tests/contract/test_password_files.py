"""``msgproto passwd`` writes what every server with log-ins can check, and no password."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.tools.processes import Launched, Launcher

RIGHT, WRONG = "p\u00e4ss\u00a0:w\u00f6rd\u00ad", "p\u00e4ss"  # SASLprep: a blank, and nothing
SERVERS: dict[str, tuple[str, ...]] = {"sabc": (), "umq": (), "mtl": ("--destination=ingest",)}


@pytest.fixture
def users(launch: Launcher) -> Path:
    """RD-28: two users, one of whom has a plain password."""
    file = launch.directory / "users"
    file.write_text("# who may\nold:plain\n")
    done = launch.run("passwd", file, "new", stdin=RIGHT + "\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "new: added\n", "")
    return file


def serve(launch: Launcher, auth: str) -> tuple[Launched, dict[str, str]]:
    loopback = 'endpoint = "tcp:0:interface=127.0.0.1"'
    (launch.directory / "g.toml").write_text(
        f'[sabc]\n{loopback}\nauth = "{auth}"\n[umq]\n{loopback}\nauth = "{auth}"\n'
        f'[mtl]\nendpoint = "tcp://127.0.0.1:*"\nauth = "{auth}"\n'
    )
    server = launch("gateway", "--config=g.toml")
    return server, {name: server.address(name) for name in SERVERS}


def logged_in(launch: Launcher, name: str, address: str, user: str, password: str) -> bool:
    (launch.directory / "password").write_text(password + "\n")
    words = ("send", name, address, "--count=1", f"--user={user}", "--password-file=password")
    return launch.run(*words, *SERVERS[name]).returncode == 0


@pytest.mark.parametrize("scheme", ["passwords", "file"])
def test_every_server_takes_the_right_password_alone(
    launch: Launcher, users: Path, scheme: str
) -> None:
    """RD-28: PLAIN and SCRAM; twisted.cred's own scheme reads plain passwords alone."""
    _, addresses = serve(launch, f"{scheme}:users")
    for name, address in addresses.items():
        assert logged_in(launch, name, address, "old", "plain"), name
        assert logged_in(launch, name, address, "new", RIGHT) is (scheme == "passwords"), name
        for user, password in (("new", WRONG), ("old", "pla"), ("nobody", "plain")):
            assert not logged_in(launch, name, address, user, password), name


def test_the_file_has_no_password_and_is_its_owners(launch: Launcher, users: Path) -> None:
    text = users.read_text()
    assert "p\u00e4ss" not in text
    assert text.startswith("# who may\nold:plain\nnew:SCRAM-SHA-256$")
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert launch.run("passwd", users, "old", stdin="x\n").stdout == "old: changed\n"
    names = [line.partition(":")[0] for line in users.read_text().splitlines()]
    assert names == ["# who may", "old", "new"]
    assert launch.run("passwd", users, "new", "--delete").stdout == "new: removed\n"
    assert users.read_text().count("\n") == 2
    assert sorted(os.listdir(users.parent)) == ["users"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("users", "a:b"), "no :"),
        (("users", "a\nb"), "no : and no control characters"),
        (("users", ""), "1 to 255 bytes"),
        (("users", "n" * 256), "1 to 255 bytes"),
        (("users", "#a"), "begin with #"),
        (("users", "nobody", "--delete"), "has no user 'nobody'"),
        (("missing/users", "me"), "missing/users: No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_changes_nothing(
    launch: Launcher, users: Path, words: tuple[str, ...], said: str
) -> None:
    before = users.read_bytes()
    done = launch.run("passwd", *words, stdin="secret\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
    assert users.read_bytes() == before


def test_an_empty_password_is_refused(launch: Launcher, users: Path) -> None:
    before = users.read_bytes()
    done = launch.run("passwd", users, "new")
    assert (done.returncode, users.read_bytes()) == (2, before)


@pytest.mark.parametrize("scheme", ["passwords", "file"])
def test_a_file_with_plain_passwords_is_warned_of(
    launch: Launcher, users: Path, scheme: str
) -> None:
    """RD-28: by ``check``, and in the log of the server; the remedy ends it."""
    server, _ = serve(launch, f"{scheme}:users")
    checked = launch.run("check", "--file-only", "g.toml").stdout
    for name in SERVERS:
        said = f"{name}: 1 of 2 passwords in users are plain text: msgproto passwd"
        assert said in checked
        server.line(said)
    launch.run("passwd", users, "old", stdin="plain\n")
    assert "plain text" not in launch.run("check", "g.toml").stdout
