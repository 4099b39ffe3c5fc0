"""``class`` and ``sink`` of a gateway.toml and of the plugins: an operator's own code (FC-05)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.contract.cases import CASES
from tests.tools.processes import START_SECONDS, Launcher
from twisted_msgproto.core.errors import ConfigurationError, Refused
from twisted_msgproto.gateway import Configuration, make_gateway
from twisted_msgproto.net import options
from twisted_msgproto.net.gateway import Gateway
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.registry import PROTOCOLS

OWN = """
from twisted.internet.defer import succeed
from zope.interface import implementer
from twisted_msgproto import IMessageSink
from twisted_msgproto.lumberjack import *
from twisted_msgproto.micromsg2 import *
from twisted_msgproto.mtl import *
from twisted_msgproto.sabc import *
from twisted_msgproto.umq import *
from twisted_msgproto.umq.service import DefaultServer, DefaultServerFactory

LumberjackServers, MicroMsg2Servers, SabcServers, UmqServers, MtlServers = [
    type("Own", (base,), {})
    for base in (LumberjackServer, MicroMsg2Server, SabcServer, UmqServer, MtlServer)
]
LumberjackFactories, MicroMsg2Factories, SabcFactories, UmqFactories, MtlFactories = [
    type("OwnFactory", (base,), {})
    for base in (
        LumberjackServerFactory,
        MicroMsg2ServerFactory,
        SabcServerFactory,
        DefaultServerFactory,
        MtlServerFactory,
    )
]

class Failing(LumberjackServerFactory):
    def __init__(self, *arguments, **options):
        raise KeyError("no such setting")

@implementer(IMessageSink)
class Sink:
    calls = []
    def __init__(self, gateway):
        self.calls.append("made")
        self.gateway = gateway
    def open(self):
        self.calls.append("open")
    def put(self, batch):
        return succeed(None) if self.gateway.sink is None else self.gateway.sink.put(batch)
    def close(self, seconds):
        self.calls.append("close")

@implementer(IMessageSink)
class Shut(Sink):
    def open(self):
        raise RuntimeError("the door is shut")

@implementer(IMessageSink)
class Late(Sink):
    def open(self):
        return succeed(None)

class NoSink: pass
def nothing(gateway): return 3
def fails(gateway): raise KeyError("which")
number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "own_code.py").write_text(OWN)
    (tmp_path / "needy_code.py").write_text("import no_such_library")
    (tmp_path / "broken_code.py").write_text("raise RuntimeError('not today\\nnor ever')")
    (tmp_path / "ending_code.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("own_code", None)
    yield tmp_path
    sys.modules.pop("own_code", None)


TITLES = {case.name: case.title for case in CASES}


def gateway_of(tables: dict[str, Any]) -> Gateway:
    return make_gateway(Configuration(tables), Clock())


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
@pytest.mark.parametrize("kind", ["Servers", "Factories"])
def test_a_subclass_of_the_server_or_of_its_factory_is_run(own: Any, name: str, kind: str) -> None:
    """FC-05"""
    configuration = Configuration({name: {"class": f"own_code:{TITLES[name]}{kind}"}})
    assert f'class = "own_code:{TITLES[name]}{kind}"' in "\n".join(configuration.lines())
    (factory,) = make_gateway(configuration, Clock()).factories
    wanted = getattr(sys.modules["own_code"], f"{TITLES[name]}{kind}")
    assert (type(factory) if kind == "Factories" else factory.protocol) is wanted
    assert str(own) not in sys.path


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("class", "nothing", "MODULE:NAME is expected"),
        ("class", ":X", "MODULE:NAME is expected"),
        ("class", "own_code:", "MODULE:NAME is expected"),
        ("class", "ending_code:X", "importing it failed: SystemExit$"),
        ("class", "no.such:Thing", "there is no such module: install its package, or put its dir"),
        ("class", "own_code:Sink.other.x", "the module own_code has no Sink.other.x"),
        ("class", "needy_code:X", "it needs no_such_library, which is not installed"),
        ("class", "broken_code:X", "importing it failed: RuntimeError: not today$"),
        ("class", "own_code:number", "has to be a subclass of .*LumberjackServer or .*Factory"),
        ("class", "own_code:UmqServers", "has to be a subclass of .*LumberjackServer or "),
        ("sink", "nothing", r"no package has registered it .*, nor is it MODULE:NAME"),
        ("sink", "own_code:number", "it has to be a class or a function"),
        ("sink", "own_code:NoSink", r"has to be an @implementer\(IMessageSink\)"),
    ],
)
def test_what_cannot_be_is_seen_by_the_check_and_named(
    own: Any, key: str, value: str, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        Configuration({"lumberjack": {key: value}})
    text = str(caught.value)
    assert text.startswith(f"[lumberjack]: {key} {value!r}: ") and "\n" not in text


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("class", "own_code:Failing", "making it failed: KeyError: 'no such setting'"),
        ("sink", "own_code:nothing", "it returned a int, no IMessageSink"),
        ("sink", "own_code:fails", "making it failed: KeyError: 'which'"),
    ],
)
def test_what_cannot_be_made_is_one_line_at_the_start(
    own: Any, key: str, value: str, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        gateway_of({"lumberjack": {key: value}})
    assert str(caught.value).startswith(f"[lumberjack]: {key} {value!r}: ")


@pytest.mark.parametrize("kind", ["UmqServers", "UmqFactories"])
def test_umq_takes_the_calls_that_ingest_names_with_any_class(own: Any, kind: str) -> None:
    gateway = gateway_of({"umq": {"class": f"own_code:{kind}", "ingest": ["put"]}})
    (factory,) = gateway.factories
    factory.methods.check('["put"]')
    with pytest.raises(Refused):
        factory.methods.check('["other"]')


def test_a_sink_is_made_once_and_opened_and_closed_with_the_gateway(own: Any) -> None:
    table = {"sink": "own_code:Sink"}
    gateway = gateway_of({"lumberjack": table, "sabc": table, "micromsg2": {}})
    first, second, third = gateway.factories
    assert first.sink is second.sink and type(first.sink).__name__ == "Sink"
    assert third.sink is None
    own_code = sys.modules["own_code"]
    assert own_code.Sink.calls == ["made"]
    for child in list(gateway):
        child.disownServiceParent()  # nothing listens on a Clock
    gateway.startService()
    assert own_code.Sink.calls == ["made", "open"]
    gateway.stopService()
    assert own_code.Sink.calls == ["made", "open", "close"]


@pytest.mark.parametrize(("name", "why"), [("Shut", "the door is shut"), ("Late", "open.. is a")])
def test_a_sink_which_cannot_open_ends_the_start_with_a_line(own: Any, name: str, why: str) -> None:
    gateway = gateway_of({"lumberjack": {"sink": f"own_code:{name}"}})
    with pytest.raises(SystemExit, match=f"msgproto: sink 'own_code:{name}': {why}"):
        gateway.startService()


def test_a_sink_which_does_not_close_does_not_hold_up_the_end(own: Any) -> None:
    gateway = gateway_of({"lumberjack": {"sink": "own_code:Sink"}})
    for child in list(gateway):
        child.disownServiceParent()
    never: Deferred[None] = Deferred()
    sys.modules["own_code"].Sink.close = lambda self, seconds: never
    gateway.startService()
    ended: list[Any] = []
    gateway.stopService().addCallback(ended.append)
    assert not ended
    gateway.reactor.advance(4.0)
    assert ended


def test_a_registered_sink_is_named_by_its_name(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(own))
    own_code: Any = importlib.import_module("own_code")
    monkeypatch.setattr(options, "registered_sink", {"mine": own_code.Sink}.__getitem__)
    (factory,) = gateway_of({"lumberjack": {"sink": "mine"}}).factories
    assert isinstance(factory.sink, own_code.Sink)
    assert factory.sink.put(None).result is None


def test_check_says_in_one_line_which_file_key_and_remedy(launch: Launcher) -> None:
    (launch.directory / "gateway.toml").write_text('[lumberjack]\nclass = "my.app:Server"\n')
    ended = launch.run("check", "gateway.toml", seconds=START_SECONDS)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(
        "msgproto check: gateway.toml: [lumberjack]: class 'my.app:Server': there is no such"
        " module: install its package, or put its directory on PYTHONPATH (looked in "
    )


@pytest.mark.slow
def test_the_plugins_have_the_same_options(launch: Launcher) -> None:
    """A subclass which marks, and a sink which counts before it hands on to the queue."""
    (launch.directory / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from zope.interface import implementer\n"
        "from twisted_msgproto import IMessageSink\n"
        "from twisted_msgproto.lumberjack import LumberjackServer\n"
        "class Marking(LumberjackServer):\n"
        "    def batchReceived(self, batch):\n"
        "        marked = replace(batch, destination=['marked'] * batch.count)\n"
        "        return super().batchReceived(marked)\n"
        "@implementer(IMessageSink)\n"
        "class Counting:\n"
        "    count = 0\n"
        "    def __init__(self, gateway):\n"
        "        self.gateway = gateway\n"
        "    def put(self, batch):\n"
        "        self.count += batch.count\n"
        "        return self.gateway.sink.put(batch)\n"
        "    def close(self, seconds):\n"
        "        print('counted', self.count, flush=True)\n"
    )
    server = launch(
        *("lumberjack", "-e", "tcp:0:interface=127.0.0.1", "--queue", "spool"),
        *("--class", "mine:Marking", "--sink", "mine:Counting"),
        module="twisted",
    )
    sent = launch.run(
        "send",
        "lumberjack",
        server.address("lumberjack", seconds=START_SECONDS),
        "--count",
        "25",
        seconds=START_SECONDS,
    )
    assert sent.returncode == 0, sent.stdout + sent.stderr
    server.end(seconds=START_SECONDS)
    server.line("counted 25")
    reader = QueueReader(launch.directory / "spool")
    (batch,) = reader.read(0, 25)
    assert set(batch.column("destination").to_pylist()) == {"marked"}


@pytest.mark.slow
def test_ctrl_c_in_a_hook_ends_the_process_in_order(launch: Launcher) -> None:
    """It is a signal to the reactor, and no exception in the hook."""
    (launch.directory / "mine.py").write_text(
        "import os, signal\n"
        "from twisted_msgproto.lumberjack import LumberjackServer\n"
        "class Interrupted(LumberjackServer):\n"
        "    async def messageReceived(self, message):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
    )
    server = launch(
        *("lumberjack", "-e", "tcp:0:interface=127.0.0.1", "--class", "mine:Interrupted"),
        module="twisted",
    )
    address = server.address("lumberjack", seconds=START_SECONDS)
    sent = launch.run("send", "lumberjack", address, "--count", "1", seconds=START_SECONDS)
    assert sent.returncode == 0, sent.stderr
    server.wait()
    assert "Traceback" not in server.output
    server.line("Main loop terminated")
