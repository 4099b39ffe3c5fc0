"""What ``msgproto send`` and ``msgproto recv`` have in common: options, errors, exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from twisted_msgproto.core.errors import ConfigurationError, MsgprotoError
from twisted_msgproto.registry import known, load, registered

T = TypeVar("T")

FAILED = 1
"""Exit status when the peer or the network is the cause."""


def positive(text: str) -> int:
    """An option's value of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {text}")
    return number


def add_connect_options(parser: argparse.ArgumentParser) -> None:
    """PROTOCOL, ENDPOINT and the options which say who connects."""
    parser.add_argument("protocol", metavar="PROTOCOL", help=" | ".join(known()))
    parser.add_argument(
        "endpoint",
        metavar="ENDPOINT",
        nargs="?",
        help="tcp:HOST:PORT, tls:HOST:PORT, unix:PATH, ws://…, wss://…, for mtl a ZeroMQ address;"
        " without it: where the protocol's server listens by default",
    )
    parser.add_argument(
        "--destination", metavar="NAME", help="the queue, topic, method or resource meant"
    )
    parser.add_argument("--user", metavar="NAME", help="who logs in")
    parser.add_argument(
        "--password-file", metavar="FILE", type=Path, help="its first line is the password"
    )
    parser.add_argument(
        "--tls-ca", metavar="FILE", type=Path, help="PEM of the authorities to trust"
    )
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="PEM of our certificate")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="PEM of its private key")


def command_of(protocol: str, verb: str) -> ModuleType:
    """The protocol's command module; ConfigurationError if it has no such verb."""
    registered(protocol)
    module = load(protocol, "command")
    if not hasattr(module, verb):
        raise ConfigurationError(f"{protocol} has no {verb}")
    return module


def connect_options(arguments: argparse.Namespace, command: ModuleType) -> dict[str, Any]:
    """The fields of ConnectOptions; ConfigurationError if the password file cannot be read."""
    password = None
    if arguments.password_file is not None:
        try:
            lines = arguments.password_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the password file: {error}") from None
        password = lines[0] if lines else ""
    return {
        "endpoint": arguments.endpoint or command.DEFAULT_ENDPOINT,
        "destination": arguments.destination,
        "user": arguments.user,
        "password": password,
        "tls_ca": arguments.tls_ca,
        "tls_cert": arguments.tls_cert,
        "tls_key": arguments.tls_key,
    }


def run_client(name: str, work: Callable[[Any], Coroutine[Any, Any, object]]) -> bool:
    """Run ``work`` in the reactor; False if the peer or the network ended it (a line says why)."""
    from twisted.internet.error import ConnectError, ConnectionClosed, DNSLookupError

    from .running import run_in_reactor

    try:
        run_in_reactor(work)
    except ConfigurationError:
        raise
    except (MsgprotoError, ConnectError, ConnectionClosed, DNSLookupError, OSError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"msgproto {name}: {text}", file=sys.stderr)
        return False
    return True
