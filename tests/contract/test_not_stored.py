"""Clients of all five protocols, the page and the log while a gateway can store nothing.

``docs/how-it-is-tested.md`` has the table that this measures.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from errno import EIO, EMFILE, ENOMEM, ENOSPC, EROFS
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred, DeferredLock, gatherResults
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.tools.five import ANYWHERE, CLIENTS, SERVERS, Client
from twisted_msgproto import cli
from twisted_msgproto.gateway import Configuration, make_gateway
from twisted_msgproto.net.gateway import Gateway
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.testing import BrokenDisk

pytestmark = pytest.mark.slow
reactor: Any = installed

PAGE = Path(__file__).parents[2] / "docs" / "how-it-is-tested.md"
NEW_SEGMENT = {"segment_bytes": 1}
"""Each group begins a segment."""
RED = {"healthy": 0.0, "safe": 0.0}
CHANGES = ("write", "truncate", "rename", "remove")


class Way(NamedTuple):
    """One way not to store: ``begin(disk, queue)`` returns what ends it."""

    what: str
    begin: Callable[[BrokenDisk, Path], Callable[[], object]]
    options: Mapping[str, Any] = MappingProxyType({})
    idle: bool = False
    """It is noticed while nobody sends."""


def failing(what: str, number: int, *steps: str, name: str = "", **options: Any) -> Way:
    def begin(disk: BrokenDisk, queue: Path) -> Callable[[], object]:
        for step in steps:
            disk.fail(step, name=name, errno=number, times=None)
        return disk.heal

    return Way(what, begin, options)


def hanging(what: str, step: str, **options: Any) -> Way:
    def begin(disk: BrokenDisk, queue: Path) -> Callable[[], object]:
        disk.hang(step)
        return disk.heal

    return Way(what, begin, options)


def moved(what: str, name: str, *, replaced: bool = False) -> Way:
    """Somebody moves the file that matches ``name`` away, and puts it back."""

    def begin(disk: BrokenDisk, queue: Path) -> Callable[[], object]:
        path = sorted(queue.parent.glob(f"{queue.name}/{name}" if name else queue.name))[-1]
        aside = queue.parent / "aside"
        path.rename(aside)
        if replaced and aside.is_dir():
            path.mkdir()
        elif replaced:
            path.write_bytes(aside.read_bytes())

        def back() -> None:
            if replaced and aside.is_dir():
                path.rename(queue.parent / "other")
            aside.replace(path)

        return back

    return Way(what, begin, idle=True)


def cut(disk: BrokenDisk, queue: Path) -> Callable[[], object]:
    path = sorted(queue.glob("*.segment"))[-1]
    octets = path.read_bytes()
    os.truncate(path, 10)

    def back() -> None:
        with path.open("r+b") as file:
            file.write(octets)

    return back


WAYS = (
    failing("the disk is full", ENOSPC, "write"),
    failing("the disk is mounted read-only", EROFS, *CHANGES),
    failing("every write fails", EIO, "write"),
    failing("every sync fails", EIO, "sync"),
    failing("the file `end` cannot be written", EIO, "write", name="/end"),
    failing("there is no room to write the file `end`", ENOSPC, "write", name="/end"),
    failing("no new segment can be made", EIO, "open", name=".segment", **NEW_SEGMENT),
    failing("no file descriptor is left", EMFILE, "open", name=".segment", **NEW_SEGMENT),
    failing("the kernel has no memory", ENOMEM, "open", name=".segment", **NEW_SEGMENT),
    failing("the directory cannot be synced", EIO, "sync_directory", **NEW_SEGMENT),
    hanging("a write hangs", "write"),
    hanging("a sync hangs", "sync"),
    hanging("the whole disk hangs", "stat"),
    moved("the newest segment is removed or renamed", "*.segment"),
    moved("the newest segment is replaced by a copy", "*.segment", replaced=True),
    Way("the newest segment is cut short", cut, idle=True),
    moved("the file `end` is removed", "end"),
    moved("the file `lock` is removed", "lock"),
    moved("the file `lock` is replaced", "lock", replaced=True),
    moved("the directory is moved away", ""),
    moved("the directory is replaced by another", "", replaced=True),
)


class Tried(NamedTuple):
    """A gateway that runs, what its queue tells, and its clients."""

    way: Way
    queue: Path
    disk: BrokenDisk
    gateway: Gateway
    told: list[str]
    url: str
    clients: list[tuple[Client, Any]]

    @property
    def lines(self) -> list[str]:
        return [line for line in self.told if "acknowledged" in line]


class NotStored(TestCase):
    """RD-53, RD-54, RD-55: nothing is acknowledged, all say so within seconds, and it heals."""

    timeout = 1200

    async def test_each_way_not_to_store_is_told_and_heals(self) -> None:
        reactor.suggestThreadPoolSize(3 * len(WAYS))
        self.printing = DeferredLock()
        tried = [await self.begun(way) for way in WAYS]
        try:
            told = await gatherResults([Deferred.fromCoroutine(self.told(one)) for one in tried])
        finally:
            for one in tried:
                for _, service in one.clients:
                    await service.close()
                await one.gateway.stopService()
        ways: dict[str, list[str]] = {}
        for way, said in zip(WAYS, told, strict=True):
            ways.setdefault(said, []).append(way.what)
        rows = [f"| {'; '.join(what)} | {said} |" for said, what in ways.items()]
        print("", *rows, sep="\n")
        page = PAGE.read_text().splitlines()
        self.assertEqual([row for row in rows if row not in page], [])

    async def begun(self, way: Way) -> Tried:
        disk, told, queue = BrokenDisk(), list[str](), Path(self.mktemp()).absolute() / "queue"
        queue.parent.mkdir()
        gateway, ports = await self.gateway(queue, disk, {**way.options, "report": told.append})
        clients = [
            (client, client.make(ports[client.server][client.nth - 1]))
            for name, client in CLIENTS.items()
            if "safe" not in name
        ]
        for _, service in clients:
            service.startService()
        QueueReader(queue).register("spark")
        url = f"http://127.0.0.1:{ports['status'][0]}"
        return Tried(way, queue, disk, gateway, told, url, clients)

    async def told(self, one: Tried) -> str:
        """Return what all say while messages cannot be stored in this way."""
        await gatherResults([client.send(service, b"{}") for client, service in one.clients])
        figures = await self.until(one.url, ok=True)
        self.assertTrue(figures["safe"]["ok"], figures["safe"])
        end = one.way.begin(one.disk, one.queue)
        try:
            if one.way.idle:
                await self.until(one.url, ok=False)
            sent = [client.send(service, b'{"n":2}') for client, service in one.clients]
            figures = await self.until(one.url, ok=False)
            said = await self.said(one, figures, sent)
        finally:
            end()
        await gatherResults(sent)
        figures = await self.until(one.url, ok=True)
        self.assertTrue(figures["safe"]["ok"], figures["safe"])
        self.assertEqual(len(one.lines), 2, one.told)
        self.assertIn("messages are acknowledged again", one.lines[1])
        self.assertLess(len(one.told), 10, one.told)
        return said

    async def gateway(
        self, queue: Path, disk: BrokenDisk, options: Mapping[str, Any]
    ) -> tuple[Gateway, dict[str, list[int]]]:
        """Return a gateway that runs, and the ports of each server and of the live page."""
        text = SERVERS.format(queue=queue, **ANYWHERE)
        tables = tomllib.loads(f'{text}[status]\nendpoint = "tcp:0:interface=127.0.0.1"\n')
        gateway = make_gateway(Configuration(tables), reactor, disk=disk, **options)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            gateway.startService()
            while output.getvalue().count(" listening on ") <= len(ANYWHERE):
                await deferLater(reactor, 0.01)
        ports: dict[str, list[int]] = {}
        for name, port in re.findall(r"(\w+) listening on \S+:(\d+)", output.getvalue()):
            ports.setdefault(name, []).append(int(port))
        return gateway, ports

    async def until(self, url: str, *, ok: bool) -> Any:
        while (await deferToThread(self.get, f"{url}/healthz"))[0] != (200 if ok else 503):
            await deferLater(reactor, 0.05)
        figures = json.loads((await deferToThread(self.get, f"{url}/status.json"))[1])
        self.assertEqual(figures["healthy"]["ok"], ok)
        return figures

    @staticmethod
    def get(url: str) -> tuple[int, str]:
        try:
            with urlopen(url) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async def said(self, one: Tried, figures: Any, sent: list[Any]) -> str:
        self.assertEqual((len(sent), [answer for answer in sent if answer.called]), (5, []))
        status, why = await deferToThread(self.get, f"{one.url}/healthz")
        _, metrics = await deferToThread(self.get, f"{one.url}/metrics")
        values = dict(re.findall(r"^msgproto_(healthy|safe) (\S+)$", metrics, re.MULTILINE))
        output = io.StringIO()
        await self.printing.acquire()
        with contextlib.redirect_stdout(output):
            code = await deferToThread(cli.main, ["status", one.url])
        self.printing.release()
        self.assertEqual((status, code), (503, 1))
        self.assertEqual({name: float(value) for name, value in values.items()}, RED)
        self.assertIn(figures["healthy"]["why"][:40], why)
        self.assertEqual(output.getvalue()[:3], "!! ")
        self.assertFalse(figures["safe"]["ok"])
        (line,) = one.lines
        self.assertRegex(line, "^nothing can be acknowledged: .*; trying again$")
        said = figures["safe"]["why"].removeprefix("What was acknowledged is on disk.  ")
        begin, _, said = said.partition("Nothing can be acknowledged: ")
        self.assertEqual(begin, "")
        for found, shown in (
            (re.escape(str(Path(figures["queue"]["directory"]).parent)), "/srv"),
            (r": '/srv\S+'", ""),
            (r"\d{20}", "…"),
            (r"\d+ s\b", "… s"),
        ):
            said = re.sub(found, shown, said)
        return said
