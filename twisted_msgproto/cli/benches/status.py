"""Measure what the live page and Prometheus cost a gateway with 10,000 sessions (``FC-03``).

The gateway has a real queue; its sessions never speak, beside one that sends in bulk.

* *figures*: milliseconds until ``/status.json`` is answered, gathered anew each time.
* *longest turn*: the CPU time between two calls of a timer of 2 ms meanwhile, which is that of the
  longest turn of the reactor and at most 2 ms of others.
* *scrape*: CPU milliseconds of the gateway for ``/metrics``, gathered anew each time: while the
  sessions are silent, and when each of them has sent one event since the last scrape.
* *a page and a scraper*: CPU time of the gateway while a page is open and Prometheus scrapes every
  5 s, above that without them, as a share of a processor; its throughput falls by that share.
* *bulk with a page and a scraper*: CPU time a message, beside that without them; it informs, since
  it varies more from run to run than what is to be measured.
"""

from __future__ import annotations

import argparse
import http.client
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Final

from ..measuring import Comparison, Figures, Gauge, Reading, Row, Subject, answer_usage
from .idle import SPARE_FILES, connect, need_files, one_event_each
from .lumberjack import drive, json_window

MODULE = "twisted_msgproto.cli.benches.status"
SESSIONS: Final = 10_000
ASKED: Final = 5
"""A reading is the median of this many answers."""
SCRAPES: Final = 100
"""CPU time is measured over this many."""
ANEW_SECONDS: Final = 1.1
"""Figures are kept for a second."""
SCRAPE_SECONDS: Final = 5.0
"""The scraper asks this often; Prometheus itself asks every minute by default."""
TICK_SECONDS: Final = 0.002
WINDOW: Final = 1024
IN_FLIGHT: Final = 4
MESSAGES: Final = 2_000_000
"""A piece of work has this many; it lasts some seconds, with a sample for the page every two."""
FIGURES_MARK: Final = 200.0
TURN_MARK: Final = 50.0
SCRAPE_MARK: Final = 20.0
SHARE_MARK: Final = 2.0
SHARE_SECONDS: Final = 20.0


class Watched:
    """Is a gateway with many sessions, in a process of its own."""

    def __init__(self, directory: Path, count: int, seconds: float) -> None:
        self._directory = directory
        self._count = count
        self._seconds_watched = seconds
        self._sockets: list[socket.socket] = []

    @cached_property
    def gateway(self) -> Subject:
        """Start the gateway and connect all its sessions."""
        need_files(self._count + SPARE_FILES)
        made = Subject(MODULE, "serve", str(self._directory / "queue"), str(self._count))
        connect(made.port, self._count, self._sockets)
        drive(made.port, json_window(WINDOW), 10)
        return made

    @cached_property
    def _port(self) -> int:
        return int(self.gateway.usage()["status"])

    def _seconds(self, path: str) -> float:
        """Return the seconds until one request is answered."""
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)) as asked:
            asked.connect()
            began = time.perf_counter()
            asked.request("GET", path)
            answer = asked.getresponse()
            answer.read()
            if answer.status != http.client.OK:
                raise RuntimeError(f"{path} is answered with {answer.status}")
            return time.perf_counter() - began

    def _anew(self, path: str) -> Iterator[float]:
        for _ in range(ASKED):
            time.sleep(ANEW_SECONDS)
            yield self._seconds(path)

    def figures(self) -> Reading:
        """Return milliseconds until the figures are there."""
        _ = self._port
        return Reading(median(self._anew("/status.json")) * 1e3, {"sessions": self._count})

    def turn(self) -> Reading:
        """Return the CPU milliseconds of the longest turn meanwhile, the median of some answers."""
        _ = self._port
        longest = []
        for _ in range(ASKED):
            time.sleep(ANEW_SECONDS)
            quiet = self.gateway.usage()["longest"]
            self._seconds("/status.json")
            longest.append(self.gateway.usage()["longest"])
        return Reading(median(longest) * 1e3, {"ms before": quiet * 1e3})

    def _cpu(self, path: str, times: int) -> float:
        """Return the CPU seconds of the gateway for one answer that is gathered anew."""
        port = int(self.gateway.usage()["anew"])
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as asked:
            before = self.gateway.usage()["cpu"]
            for _ in range(times):
                asked.request("GET", path)
                answer = asked.getresponse()
                answer.read()
                if answer.status != http.client.OK:
                    raise RuntimeError(f"{path} is answered with {answer.status}")
            return float(self.gateway.usage()["cpu"] - before) / times

    def scrape(self) -> Reading:
        """Return the CPU milliseconds of a scrape while nobody speaks."""
        _ = self._port
        self._cpu("/metrics", 1)
        return Reading(self._cpu("/metrics", SCRAPES) * 1e3, {"sessions": self._count})

    def stirred(self) -> Reading:
        """Return the CPU milliseconds of the scrape after each session has sent one event."""
        _ = self._port
        before = self.gateway.usage()["cpu"]
        one_event_each(self._sockets)
        spoke = self.gateway.usage()["cpu"] - before
        scraped = self._cpu("/metrics", 1)
        return Reading(scraped * 1e3, {"ms for the events": spoke * 1e3})

    def share(self) -> Reading:
        """Return how much of a processor the gateway uses for a page and a scraper, in percent."""
        _ = self._port
        used = []
        for watched in (False, True):
            with ExitStack() as stack:
                if watched:
                    stack.enter_context(self._watching())
                before, began = self.gateway.usage()["cpu"], time.perf_counter()
                time.sleep(self._seconds_watched)
                taken = self.gateway.usage()["cpu"] - before
                used.append(taken / (time.perf_counter() - began) * 100)
        return Reading(used[1] - used[0], {"without": used[0], "seconds": self._seconds_watched})

    def load(self, messages: int, watched: bool) -> Figures:
        """Send in bulk, with a page and a scraper or without."""
        windows = max(1, messages // WINDOW)
        with ExitStack() as stack:
            if watched:
                stack.enter_context(self._watching())
            return self.gateway.measure(
                windows * WINDOW,
                lambda: drive(self.gateway.port, json_window(WINDOW), windows, 1, IN_FLIGHT),
            )

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Have a page open, and a scraper."""
        ended = threading.Event()
        page = socket.create_connection(("127.0.0.1", self._port))
        page.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")

        def read() -> None:
            while page.recv(1 << 16):
                pass

        def scrape() -> None:
            while not ended.wait(SCRAPE_SECONDS):
                self._seconds("/metrics")

        threads = [threading.Thread(target=work, daemon=True) for work in (read, scrape)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            page.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            page.close()

    def close(self) -> None:
        """End the gateway and its sessions."""
        for connection in self._sockets:
            connection.close()
        if (made := self.__dict__.get("gateway")) is not None:
            made.close()


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows; ``arguments`` are those of ``msgproto bench``."""
    count = max(10, int(SESSIONS * min(1.0, arguments.scale)))
    messages = max(WINDOW, int(MESSAGES * arguments.scale))
    seconds = max(1.0, SHARE_SECONDS * min(1.0, arguments.scale))
    with (
        tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue) as made,
        closing(Watched(Path(made), count, seconds)) as watched,
    ):
        name = f"status, {count:,} sessions"
        yield Gauge(f"{name}, figures", "ms", watched.figures, mark=FIGURES_MARK)
        yield Gauge(f"{name}, longest turn", "ms", watched.turn, mark=TURN_MARK)
        yield Gauge(f"{name}, scrape", "ms of CPU", watched.scrape, mark=SCRAPE_MARK)
        yield Gauge(f"{name}, scrape after one event of each", "ms of CPU", watched.stirred)
        yield Gauge(
            f"{name}, a page and a scraper", "% of a processor", watched.share, mark=SHARE_MARK
        )
        yield Comparison(
            f"{name}, bulk with a page and a scraper",
            "bulk alone",
            "cpu",
            lambda: watched.load(messages, True),
            lambda: watched.load(messages, False),
        )


# ── The gateway's process ───────────────────────────────────────────────────────────────────────


def serve(directory: str, count: str) -> None:
    """Serve Lumberjack and the status site; tell the longest turn since it was asked last."""
    from twisted.internet import reactor as installed
    from twisted.internet.task import LoopingCall

    from twisted_msgproto.lumberjack.service import Options
    from twisted_msgproto.net.control.resources import BodilessRequest
    from twisted_msgproto.net.control.site import ControlSite
    from twisted_msgproto.net.gateway import Gateway
    from twisted_msgproto.net.memory import share_processor, spare_lasting_objects
    from twisted_msgproto.net.status.figures import GatewayFigures
    from twisted_msgproto.net.status.resources import status_root
    from twisted_msgproto.net.status.service import status_site
    from twisted_msgproto.net.status.stream import Events

    reactor: Any = installed
    need_files(int(count) + SPARE_FILES)
    gateway = Gateway(reactor, directory, max_bytes=1 << 40)
    options = Options()
    options.read([f"--limit=connections={int(count) + SPARE_FILES}"])
    gateway._keepFlow()
    factory = gateway.makeFactory(options)
    here = {"interface": "127.0.0.1", "backlog": 5000}
    port = reactor.listenTCP(0, factory, **here).getHost().port
    site = status_site(gateway, "tcp:0:interface=127.0.0.1")
    status = reactor.listenTCP(0, site, **here).getHost().port
    always = Events(GatewayFigures(gateway, reactor, kept_seconds=0.0), reactor)
    anew_site: Any = ControlSite(status_root(gateway, always), requestFactory=BodilessRequest)
    anew = reactor.listenTCP(0, anew_site, **here).getHost().port
    gateway.startService()
    reactor.addSystemEventTrigger("before", "shutdown", gateway.stopService)
    share_processor()
    spare_lasting_objects()
    turns = {"before": time.thread_time(), "longest": 0.0}

    def tick() -> None:
        now = time.thread_time()
        turns["longest"] = max(turns["longest"], now - turns["before"])
        turns["before"] = now

    def told() -> dict[str, Any]:
        longest, turns["longest"] = turns["longest"], 0.0
        return {"status": status, "anew": anew, "longest": longest}

    LoopingCall(tick).start(TICK_SECONDS)
    answer_usage(reactor, port, told)
    reactor.run()


if __name__ == "__main__":
    serve(*sys.argv[2:])
