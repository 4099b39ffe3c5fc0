"""A running gateway reads certificates, keys, rules and tokens again (``reload``).

Every part that has read files yields a :class:`Change` for each; all are read before the first
change is made, so a broken file leaves everything as it was.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from twisted.application.service import IServiceCollection, Service
from twisted.logger import Logger

from ..core.errors import ConfigurationError, MsgprotoError

log: Logger = Logger(namespace="twisted_msgproto.reload")

TERMINAL: Final = "/dev/tty"


class Change(NamedTuple):
    """Something that was read again; ``apply`` puts it into force and must not fail."""

    what: str
    apply: Callable[[], object]


Reread = Callable[[], Iterable[Change]]  # ConfigurationError, one line, if a file is broken


class Reloaded(NamedTuple):
    """What is in force now, and what was changed in a file and needs a new start."""

    done: list[str]
    later: list[str]


def services_in(service: Any) -> Iterator[Any]:
    yield service
    if IServiceCollection.providedBy(service):
        for child in service:
            yield from services_in(child)


def reload(rereads: Iterable[Reread]) -> list[str]:
    """Read everything again and put it into force; if a file is broken, nothing has changed."""
    changes: list[Change] = []
    wrong: list[str] = []
    for reread in rereads:
        try:
            changes += reread()
        except (MsgprotoError, OSError) as error:
            wrong.append(str(error))
    if wrong:
        raise ConfigurationError(f"nothing was changed: {'; '.join(dict.fromkeys(wrong))}")
    for change in changes:
        change.apply()
    return [change.what for change in changes]


# ── the signal ──────────────────────────────────────────────────────────────────────────────────


class ReloadOnHangUp(Service):
    """SIGHUP reloads, or ends a process without its terminal; SIGINT and SIGTERM end it once."""

    def __init__(self, reactor: Any, reload: Callable[[], Reloaded]) -> None:
        self._reactor = reactor
        self._reload = reload
        self._before: Any = None
        self._ending = False

    def startService(self) -> None:
        """Set the signal handler; only the main thread can."""
        super().startService()  # type: ignore[no-untyped-call]
        self._had_terminal = has_terminal()
        try:
            self._before = signal.signal(signal.SIGHUP, self._signalled)
        except ValueError:  # another thread: whoever runs this there has the signals
            return
        self._reactor.callWhenRunning(self._end_once)

    def stopService(self) -> None:
        super().stopService()  # type: ignore[no-untyped-call]
        before, self._before = self._before, None
        if before is not None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN if self._ending else before)

    def _end_once(self) -> None:
        """Pass no second signal to the reactor, which raises when it is to stop again."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if callable(before):
                signal.signal(number, partial(self._end, before))

    def _end(self, end: Callable[[int, Any], object], number: int, frame: Any) -> None:
        if self._ending:
            self._reactor.callFromThread(log.info, "it is ending already")
        else:
            self._ending = True
            end(number, frame)

    def _signalled(self, *_: object) -> None:
        self._reactor.callFromThread(self._hang_up)

    def _hang_up(self) -> None:
        if self._had_terminal and not has_terminal():
            if not self._ending:
                self._ending = True
                log.info("the terminal is gone, so this ends")
                self._reactor.stop()
            return
        try:
            self._reload()
        except MsgprotoError:
            pass  # it is in the log
        except Exception:
            log.failure("the reload failed")


def has_terminal() -> bool:
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def told(done: Iterable[str], later: Iterable[str]) -> Iterator[str]:
    yield from (f"read again: {what}" for what in done)
    yield from (f"changed, and in force after the next start: {what}" for what in later)
