"""What ``msgproto send`` and ``msgproto recv`` have in common: options, errors, exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted_msgproto.core.errors import ConfigurationError, LimitExceeded
from twisted_msgproto.core.loading import EDITED
from twisted_msgproto.registry import PROTOCOLS, load, registered

from .options import FILE, Protocol, argument, option, together

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

FAILED = 1  # exit status when the peer or the network is the cause

ALIKE: Final = (
    "destination user tls_ca tls_cert tls_key window compress protocol_version ttl pipelining"
    " replace_invalid filter"
)
FLAGS: Final[Mapping[str, str]] = {
    **{name: f"--{name.replace('_', '-')}" for name in ALIKE.split()},
    "password": "--password-file",
    "extensions": "--extension",
    "properties": "--property",
    "hosts": "--host",
    "ready": "--until-empty",
}
"""A field of the options → what an operator types for it.  Not every protocol has each."""


NO_LOG_IN: Final = (
    ": the protocol has no log-ins; --tls-cert FILE and --tls-key FILE say who you are"
)

connecting = together(
    argument(
        "protocol PROTOCOL", f"{' | '.join(PROTOCOLS)}, or one of another package", Protocol()
    ),
    argument(
        "endpoint ENDPOINT",
        "tcp:HOST:PORT, tls:HOST:PORT, unix:PATH, ws://…, wss://…, for mtl a ZeroMQ address;"
        " without it: where the protocol's server listens by default",
        required=False,
    ),
    option("--destination NAME", "the queue, topic, method or resource meant"),
    option("--user NAME", "who logs in"),
    option("--password-file FILE", "its first line is the password", FILE),
    option("--tls-ca FILE", "PEM of the authorities to trust", FILE),
    option("--tls-cert FILE", "PEM of our certificate", FILE),
    option("--tls-key FILE", "PEM of its private key", FILE),
    option(
        "--extension TEXT",
        "micromsg2: require this extension, like batch-ack:max-count=50 or json; none requires"
        " nothing; by default batch-ack, then ack, is tried",
        multiple=True,
    ),
)


def command_of(protocol: str, verb: str) -> ModuleType:
    """Return the protocol's command module; ConfigurationError if it has no such verb."""
    registered(protocol)
    module = load(protocol, "command")
    if not hasattr(module, verb):
        raise ConfigurationError(f"{protocol} has no {verb}")
    return module


def check_options(
    protocol: str, command: ModuleType, verb: str, fields: Mapping[str, object]
) -> None:
    known = getattr(command, f"{verb.upper()}_OPTIONS", None)
    if known is None:
        return
    for name, flag in FLAGS.items():
        if fields.get(name) and name not in known:
            others = [one for one in PROTOCOLS if name in _fields(one, verb)]
            have = f"; it is for {', '.join(others)}" if others else ""
            raise ConfigurationError(
                f"{verb} {protocol} has no {flag}{NO_LOG_IN if name == 'user' else have}"
            )


def _fields(protocol: str, verb: str) -> Collection[str]:
    fields: Collection[str] = getattr(load(protocol, "command"), f"{verb.upper()}_OPTIONS", ())
    return fields


def connect_options(arguments: SimpleNamespace, command: ModuleType) -> dict[str, Any]:
    """Raises ConfigurationError if the password file cannot be read, or belongs to nobody."""
    password = None
    if arguments.password_file is not None:
        if arguments.user is None:
            raise ConfigurationError("--password-file goes with --user NAME")
        try:
            # Line ends become \n, and nothing else does.
            text = arguments.password_file.read_text(encoding=EDITED)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the password file: {error}") from None
        password = text.partition("\n")[0]
    return {
        "endpoint": arguments.endpoint or command.DEFAULT_ENDPOINT,
        "destination": arguments.destination,
        "user": arguments.user,
        "password": password,
        "tls_ca": arguments.tls_ca,
        "tls_cert": arguments.tls_cert,
        "tls_key": arguments.tls_key,
        "extensions": tuple(arguments.extension),
    }


def why_not(
    work: Callable[[Any], Coroutine[Any, Any, object]],
    endpoint: str,
    served: Callable[[], object],
) -> str | None:
    """Run ``work`` in the reactor; None if it ended well, else why it did not, in words.

    KeyboardInterrupt, BrokenPipeError (nobody reads our output) and ConfigurationError, also for a
    message above a limit, are raised; with ``python -X dev`` every other error, too.
    """
    from twisted_msgproto.core.reasons import reason

    _begin_logging()
    try:
        run_in_reactor(work)
    except (ConfigurationError, BrokenPipeError, ModuleNotFoundError):
        raise
    except LimitExceeded as error:
        raise ConfigurationError(reason(error, endpoint)) from error
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return reason(error, endpoint, served=bool(served()))
    return None


def _begin_logging() -> None:
    """Tell in one line how it ended, all with ``python -X dev``; Twisted else prints tracebacks."""
    from twisted.logger import globalLogBeginner, textFileLogObserver

    observers = [textFileLogObserver(sys.stderr)] if sys.flags.dev_mode else []
    globalLogBeginner.beginLoggingTo(observers, redirectStandardIO=False)


def tell(name: str, text: str) -> None:
    print(f"msgproto {name}: {' '.join(text.split())}", file=sys.stderr)


# ── one coroutine in the reactor ──────────────────────────────────────────────────────────────────


T = TypeVar("T")

STOP_SECONDS: Final = 12.0  # after a signal; longer than any protocol's limit ``drain``


def run_in_reactor(work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Return or raise what ``work`` does, once a process; signals cancel it: KeyboardInterrupt."""
    from twisted.internet import reactor as installed  # late: importing it installs it
    from twisted.internet.defer import Deferred
    from twisted.internet.error import ReactorNotRunning
    from twisted.python.failure import Failure

    from twisted_msgproto.net.process import count_monotonically

    reactor: Any = installed
    count_monotonically(reactor)
    outcome: list[T | Failure] = []
    interrupted = False

    def begin() -> None:
        running: Deferred[Any] = Deferred.fromCoroutine(work(reactor))
        reactor.addSystemEventTrigger("before", "shutdown", stopping, running)
        running.addBoth(ended)

    def stopping(running: Deferred[Any]) -> Deferred[Any]:
        nonlocal interrupted
        interrupted = not outcome
        left: Deferred[Any] = Deferred()
        left.addTimeout(STOP_SECONDS, reactor, lambda *_: None)
        running.addBoth(left.callback)  # before the cancelling: it may end at once
        running.cancel()
        return left

    def ended(result: T | Failure) -> None:
        outcome.append(result)
        with suppress(ReactorNotRunning):  # a signal was first
            reactor.stop()

    reactor.callWhenRunning(begin)
    reactor.run()
    if interrupted:
        raise KeyboardInterrupt
    result = outcome[0]
    if isinstance(result, Failure):
        result.raiseException()
    return result
