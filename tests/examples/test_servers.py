"""The programs in examples/servers do what they print, over real sockets."""

from __future__ import annotations

import sys

import pytest

from tests.tools.processes import PROJECT, START_SECONDS, Launcher, environment

SERVERS = PROJECT / "examples" / "servers"

PRINTED = {
    "filtering": """\
kept {"n": 1, "level": "info", "from": "127.0.0.1"}
event 1 is acknowledged
event 2 is acknowledged
kept {"n": 3, "level": "error", "from": "127.0.0.1"}
event 3 is acknowledged""",
    "relay": """\
20 is acknowledged
the site has b'20' of {'room': 'kitchen'}
the centre has b'20' of {'room': 'kitchen'}
21 is acknowledged
the site has b'21' of {'room': 'kitchen'}
the centre has b'21' of {'room': 'kitchen'}""",
    "prices": """\
{"name": "tea", "price": "2.50"} EUR
{"name": "coffee", "price": "3.20"} EUR
refused with 404: no such thing: cocoa""",
    "thermostat": """\
before: 20.0
change: from 20.0 to 21.5
attribute: 21.5
refused: ValueError: 99 °C is not between 5 and 30""",
    "workers": """\
3 jobs were queued
paint was done
mow was done
cook was done by Ben""",
}

GATEWAY = """
[lumberjack]
endpoint = ["tcp:0:interface=127.0.0.1"]
class = "filtering:Filtering"
[mtl]
endpoint = ["tcp://127.0.0.1:*"]
class = "workers:Foreman"
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_does(launch: Launcher, name: str) -> None:
    command = [sys.executable, "-W", "error::RuntimeWarning", str(SERVERS / f"{name}.py")]
    program = launch.command(command, env=environment(PYTHONUTF8="1"))
    assert program.wait(seconds=START_SECONDS) == 0, program.output
    assert program.output == PRINTED[name]


@pytest.mark.slow
def test_a_gateway_takes_their_classes(launch: Launcher) -> None:
    (launch.directory / "gateway.toml").write_text(GATEWAY)
    for name in ("filtering", "workers"):
        (launch.directory / f"{name}.py").write_text((SERVERS / f"{name}.py").read_text())
    checked = launch.run("check", "gateway.toml", "--file-only")
    assert checked.returncode == 0, checked.stderr


def test_every_example_is_run() -> None:
    assert {path.stem for path in SERVERS.glob("*.py")} == set(PRINTED)
