"""Serve a queue over the network (Arrow Flight), for a bridge on another machine.

Reads the queue's directory beside the gateway that writes it.  Every caller needs a token. On an
address that other machines can reach it is that of --token-file, and TLS is needed, too; the bridge
has --token-file and --tls-ca for them.  Else the server makes a token and keeps it in the queue's
directory, where programs of the same user find it by themselves.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import click

from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.core.loading import read_token
from twisted_msgproto.core.log_output import LogOutput, timed_line

from .options import FILE, LOCATION, command, option

OPENSSL = Path(__file__).parent.parent / "queue" / "openssl.cnf"
"""The server's TLS is bounded by this file, unless the environment names another one."""


@command(__doc__)
@option("--queue DIR", "the queue's directory", LOCATION, required=True)
@option(
    "--listen LOCATION",
    "grpc://HOST:PORT or grpc+tls://HOST:PORT; default: grpc://127.0.0.1:8815",
    default="grpc://127.0.0.1:8815",
)
@option("--token-file FILE", "the token for all calls; default: a new one in DIR", LOCATION)
@option("--tls-cert FILE", "certificate chain, PEM", FILE)
@option("--tls-key FILE", "its private key, PEM", FILE)
def run(arguments: SimpleNamespace) -> int:
    # Before Arrow is imported: its copy of OpenSSL reads the file when it is first used.
    os.environ.setdefault("OPENSSL_CONF", str(OPENSSL))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would write, the refusal says
    from twisted_msgproto.queue.flight_server import QueueFlightServer

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: ended.set())
    token = None if arguments.token_file is None else read_token(arguments.token_file)
    if token == "":
        raise ConfigurationError(f"{arguments.token_file} holds no token")
    log = LogOutput(2)
    server = QueueFlightServer(
        arguments.queue,
        arguments.listen,
        token=token,
        certificate=arguments.tls_cert and arguments.tls_cert.read_bytes(),
        key=arguments.tls_key and arguments.tls_key.read_bytes(),
        report=lambda line: log.write(f"{timed_line(time.time(), line)}\n"),
    )
    click.echo(timed_line(time.time(), f"flight listening on {server.address}"))
    ended.wait()
    if not server.close():  # somebody has stopped reading: Arrow would wait for that at the exit
        log.close()
        os._exit(0)
    return 0
