"""Options of a bridge that concern other machines: places, token and certificates; no process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.conftest import identity
from tests.tools.certificates import Authority
from tests.tools.served import Served
from twisted_msgproto import cli
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.spark import bridge as bridge_room
from twisted_msgproto.spark.bridge import BridgeOptions, OpenedMarks
from twisted_msgproto.spark.gateways import AWAY, REFUSED
from twisted_msgproto.spark.opening import is_remote
from twisted_msgproto.spark.options import Access, Settings

REMOTE = "grpc+tls://gateway.example:8815"


def read(*words: str, monkeypatch: pytest.MonkeyPatch) -> BridgeOptions:
    """The options that ``msgproto bridge`` makes of these words."""
    found: list[BridgeOptions] = []

    def ran(options: BridgeOptions) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(bridge_room, "run_bridge", ran)
    assert cli.main(["bridge", *words]) == 0
    return found[0]


def test_remote_places_stay_as_they_are_and_directories_become_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--queue", f"q1,{REMOTE}", "--queue", "file:///q2", "--queue", "grpc://h:1"]
    options = read(*words, "--table", "t", monkeypatch=monkeypatch)
    assert options.locations == [f"{tmp_path}/q1", REMOTE, "/q2", "grpc://h:1"]
    assert [is_remote(place) for place in options.locations] == [False, True, False, True]
    assert options.access == Access(None, None)


def test_token_and_authority_come_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--queue", REMOTE, "--table", "t", "--token-file", "token", "--tls-ca", "ca.pem"]
    options = read(*words, monkeypatch=monkeypatch)
    assert options.access == Access(token_file="token", authority="ca.pem")
    settings = Settings({"queue": REMOTE, "tokenFile": "token", "tlsCa": "ca.pem"})
    assert settings.access == options.access


@pytest.mark.parametrize("place", [REMOTE, "q"])
def test_one_place_twice_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match="are the same queue"):
        BridgeOptions([place, place], "t")
    BridgeOptions([place, f"{place}2"], "t")


@pytest.fixture
def guarded(queue: Path, tmp_path: Path) -> Iterator[str]:
    """A gateway with TLS and a token; its keys are ``token`` and ``authority.pem``."""
    pair = Authority(tmp_path).server()
    (tmp_path / "token").write_text("sesame\n")
    pem = {"certificate": pair.cert.read_bytes(), "key": pair.key.read_bytes()}
    with Served(queue, "grpc+tls://127.0.0.1:0", token="sesame", **pem) as served:
        yield served.location


def test_marks_open_a_gateway_s_queue_with_the_bridge_s_keys_once(
    queue: Path, guarded: str, tmp_path: Path
) -> None:
    options = BridgeOptions(
        [guarded],
        "t",
        token_file=str(tmp_path / "token"),
        authority=str(tmp_path / "authority.pem"),
    )
    name = identity(queue)
    one = SimpleNamespace(location=guarded, state="there")
    gateways: Any = SimpleNamespace(by_id={name: one, "other": one})
    opened = OpenedMarks(gateways, options)
    first = opened(name)
    assert first.queue_id == name
    assert first.begin() == 0
    assert opened(name) is first
    for state in (AWAY, REFUSED):
        one.state = state
        assert opened(name) is None
    one.state = "there"
    assert opened(name) is not first
