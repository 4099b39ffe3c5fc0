"""Write a gateway.toml, and systemd units for the gateway and the bridge, into a directory.

The file serves all five protocols and a live page on this machine alone, over one durable queue
beside it, and its comments say what to change for other machines.  Nothing that exists is written
over.  With --tls other machines reach the servers, with TLS and, where the protocol has log-ins,
users; what they need for that is written, too: an authority, and a certificate that it signed.
With --instances the file is for several gateways on the same ports, each with a queue of its own
below the queue's directory, and the gateway's unit is a template.
"""

from __future__ import annotations

import getpass
import inspect
import os
import pwd
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from twisted_msgproto import registry
from twisted_msgproto.core.disk import writing
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.core.log_output import private

from .options import FILE, LOCATION, argument, command, option, whole

CONFIGURATION = "gateway.toml"
GATEWAY_UNIT = "msgproto-gateway.service"
INSTANCE_UNIT = "msgproto-gateway@{}.service"
BRIDGE_UNIT = "msgproto-bridge.service"

OPEN_FILES = 65_536  # one a connection: a server admits 10,000, and systemd's default is 1,024
STOP_SECONDS = 15  # then systemd kills; a gateway ends in 5 s, and a bridge ends its batch
WATCHDOG_SECONDS = 60  # systemd restarts a gateway whose reactor stood still so long

FILE_MODE, UNIT_MODE, DIRECTORY_MODE = 0o640, 0o644, 0o755
"""A gateway.toml may hold passwords; systemd warns of a unit that nobody can read."""

AUTHORITY, AUTHORITY_KEY, USERS = "ca.pem", "ca.key", "users"

MODES = {AUTHORITY: 0o644, AUTHORITY_KEY: 0o600}
"""Clients get the authority's certificate; who has its key can be any server."""

CERTIFICATE_DAYS, AUTHORITY_DAYS = 825, 3650  # some clients refuse a server's beyond 825

TLS_NAME = re.compile(r"(?=.{1,251}$)(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
"""With .pem it is the name of a file."""

INSTANCES_MAX = 64  # each takes a processor's time and 100 MiB; no machine has more
INSTANCE = "\0"  # stands for systemd's %i until everything else is escaped

UNSHARED = {"micromsg2": "no-broker", "umq": "no-hub"}
"""These servers can share their port only without what is in the memory of one process."""

HEAD = """\
# What this gateway serves.  `msgproto check {file}` says whether it would start, and
# `msgproto gateway --config {file}` starts it in the foreground.
#
{where}
# The tables take the options of `twistd NAME --help` as keys.  Relative paths are those of this
# file's directory.

[queue]
# Acknowledged means on this disk.  It grows while the bridge is away; above max-bytes senders wait.
{instances}directory = {queue}
max-bytes = "10GiB"

[status]
# The live page, /metrics and /healthz; `msgproto status` asks here, too.
# Other machines reach it only with TLS and a token-file: see docs/status.md.
endpoint = "{status}"

# [limits]                          # of every server that has a limit of this name
# connections = 10000

# [[access]]                        # access rules: with them, what no rule allows is refused
# allow = ["publish", "subscribe"]
# user = "sensor-*"
# name = "topic/{{user}}/*"
"""

HERE = """\
# Every server listens on this machine alone.  For other machines replace an endpoint, for example
#   endpoint = ["tls:keys:{port}"]
# where the directory holds HOSTNAME.pem files with a key and its certificates."""

BEYOND = """\
# Other machines reach these servers, with TLS.  Clients trust ca.pem, and need no other file.  Keep
# ca.key, or move it away: it signs further certificates, and no server needs it."""

INSTANCES = """\
# This file is for several instances on the same ports.  Each has a queue of its own, of up to
# max-bytes, in this directory, and its own page: its unit gives --queue {queue}/NUMBER
# and --set status.endpoint=...  All limits and rates of log-ins count in each instance.
"""

STATUS_PORT = 8480  # the live page's port, at which ``msgproto status`` asks by itself

UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After={after}
# However often a start fails, it is tried again: a disk may be full, or a port in use, for a while.
StartLimitIntervalSec=0

[Service]
Type={kind}
User={user}
ExecStart={command}
WorkingDirectory={directory}
Restart=always
RestartSec=1
TimeoutStopSec={stop_seconds}
KillSignal=SIGTERM
{more}
# Nothing but files, sockets and processes of its own is needed.
NoNewPrivileges=yes
ProtectSystem=full
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""


@command(__doc__)
@argument(
    "directory DIR",
    "where the files are written; it is made if need be (default: here)",
    FILE,
    required=False,
    default=Path(),
)
@option("--queue DIR", "the durable queue (default: DIR/queue)", FILE)
@option("--table LOCATION", "where the bridge lands (default: DIR/table)", LOCATION)
@option("--user NAME", "whom systemd runs them as (default: you)")
@option(
    "--protocol NAME",
    "a protocol to serve (default: all five; with --instances all that can share a port)",
    click.Choice(list(registry.PROTOCOLS)),
    multiple=True,
)
@option(
    "--tls NAME",
    "serve other machines, with TLS: NAME, or an IP address, is what clients connect to",
    multiple=True,
)
@option(
    "--instances N",
    "for N gateways on the same ports, each with a queue of its own in the queue's directory",
    whole(1, INSTANCES_MAX),
)
def run(arguments: SimpleNamespace) -> int:
    directory: Path = arguments.directory.resolve()
    queue = (arguments.queue or directory / "queue").resolve()
    table = arguments.table or str(directory / "table")
    count = arguments.instances
    protocols = list(arguments.protocol) or [
        name for name in registry.PROTOCOLS if count is None or refusal(name) is None
    ]
    for name in protocols if count is not None else ():
        if (why := refusal(name)) is not None:
            raise ConfigurationError(f"--protocol {name} goes without --instances: {why}")
    user = user_of_units(arguments.user)
    names = list(arguments.tls)
    if names and protocols == ["mtl"]:  # its endpoint would stay open to this machine alone
        raise ConfigurationError("ZeroMQ has no TLS: leave --tls out; mtl's curve-key encrypts")
    shared = count is not None
    units = [INSTANCE_UNIT.format(number) for number in range(1, (count or 0) + 1)]
    units = units or [GATEWAY_UNIT]
    files = {
        CONFIGURATION: configuration(directory / CONFIGURATION, queue, protocols, shared, names),
        INSTANCE_UNIT.format("") if shared else GATEWAY_UNIT: gateway_unit(
            directory, user, queue if shared else None
        ),
        BRIDGE_UNIT: bridge_unit(directory, user, queue, table, units),
        **(certificates(names) if names else {}),
    }
    kept = write(directory, files, user)
    print(f"{directory}: {', '.join(files)}")
    print()
    steps = next_steps if count is None else steps_of_instances
    for line in steps(directory, queue, table, protocols, names):
        print(line)
    for line in systemd_steps(directory, units):
        print(line)
    if kept:
        print(f"  sudo chown {user} {shlex.join(map(str, kept))}")
    return 0


LOGIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)  # useradd's on every system


def user_of_units(name: str | None) -> str:
    """Return the user ``name``, or whoever this is; ConfigurationError for one who is not here."""
    if name is None:
        try:
            return getpass.getuser()
        except (KeyError, OSError):  # in a container a user may have no name
            return str(os.getuid())
    try:
        pwd.getpwnam(name)
    except KeyError:
        made = f"useradd --system {name} makes one, " if LOGIN.fullmatch(name) else ""
        raise ConfigurationError(
            f"there is no user {name!r} here: {made}--user names another"
        ) from None
    return name


def refusal(name: str) -> str | None:
    """Return why several gateways cannot share the port of a protocol; None if they can."""
    options = registry.part(name, "service", "Options")()
    if name in UNSHARED:
        options[UNSHARED[name]] = True
    why: str | None = options.sharingRefusal()
    return why


def write(directory: Path, files: Mapping[str, str], user: str) -> list[Path]:
    """ConfigurationError, and nothing is written, if a file is there; else all of it or none.

    Only the owner writes them, ``user``'s group alone reads what may hold secrets, and a directory
    made for them is ``user``'s. Returns what cannot be given to that user.
    """
    present = [name for name in files if (directory / name).exists()]
    if present:
        raise ConfigurationError(
            f"{directory / present[0]} exists, and nothing was written: remove it, or give another"
            " directory"
        )
    owner, group = -1, -1
    with suppress(KeyError):  # a number
        owner, group = pwd.getpwnam(user)[2:4]
    kept = []
    folders = {directory, *((directory / name).parent for name in files)}
    with ExitStack() as undo:
        for folder in sorted({*folders, *directory.parents}):
            if folder.is_dir():
                continue
            folder.mkdir()
            undo.callback(folder.rmdir)
            folder.chmod(DIRECTORY_MODE)
            if folder == directory:
                try:
                    os.chown(folder, owner, group)
                except PermissionError:
                    kept.append(folder)
        for name, text in files.items():
            place = directory / name
            mode = MODES.get(name, UNIT_MODE if name.endswith(".service") else FILE_MODE)
            with writing(place), open(place, "x", encoding="utf-8", opener=private) as file:
                undo.callback(place.unlink)
                try:
                    os.fchown(file.fileno(), -1, group)
                except PermissionError:
                    if mode == FILE_MODE:
                        kept.append(place)
                os.fchmod(file.fileno(), mode)
                file.write(text)
        undo.pop_all()
    return kept


def certificates(names: list[str]) -> dict[str, str]:
    """Raises ConfigurationError for a name that no certificate can have."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def general(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ip_address(name))
        except ValueError:
            pass
        if TLS_NAME.fullmatch(name) is None:
            raise ConfigurationError(f"--tls is a host name or an IP address, not {name!r}")
        return x509.DNSName(name)

    def begun(name: str, key: Any, days: int) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority if name != title else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=days))
        )

    def pem(key: Any) -> str:
        text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return text.decode()

    alternatives = x509.SubjectAlternativeName([general(name) for name in names])
    title = f"msgproto {names[0]}"
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title[:64])])
    signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    uses = dict.fromkeys(inspect.signature(x509.KeyUsage).parameters, False)
    usage = x509.KeyUsage(**uses | {"key_cert_sign": True, "crl_sign": True})
    top = (
        begun(title, signer, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    server = (
        begun(names[0], key, CERTIFICATE_DAYS)
        .add_extension(alternatives, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return {
        AUTHORITY: top.public_bytes(Encoding.PEM).decode(),
        AUTHORITY_KEY: pem(signer),
        pair_of(names): pem(key) + server.public_bytes(Encoding.PEM).decode(),
    }


def pair_of(names: list[str]) -> str:
    """Return the file with the server's key and certificate, from the gateway.toml on."""
    return f"tls/{re.sub('[*:]', '_', names[0])}.pem"


def tls_lines(row: registry.Registered, names: list[str]) -> Iterator[str]:
    """Yield the keys of a server that other machines reach with TLS."""
    pair = pair_of(names)
    for kind, port in row.ports.items():
        key = "websocket" if kind == "websocket" and len(row.ports) > 1 else "endpoint"
        yield f'{key} = ["ssl:{port}:privateKey={pair}"]'
    if "auth" in registry.part(row.name, "service", "Options")().names():
        yield f'auth = "passwords:{USERS}"'
        return
    (port,) = row.ports.values()
    yield "# It has no log-ins.  To ask clients for a certificate that ca.pem has signed:"
    yield f'# endpoint = ["mtls:{port}:privateKey={pair}:caCerts={AUTHORITY}"]'


def configuration(
    file: Path, queue: Path, protocols: list[str], shared: bool, names: list[str]
) -> str:
    """``shared``: for several gateways on the same ports; ``names``: for others, with TLS."""
    from twisted_msgproto.gateway import toml_value

    rows = [registry.registered(name) for name in protocols]
    port = next(iter(rows[0].ports.values()))
    lines = [
        HEAD.format(
            file=shlex.quote(str(file)),
            where=BEYOND if names else HERE.format(port=port),
            queue=toml_value(str(queue)),
            instances=INSTANCES.format(queue=queue) if shared else "",
            status=f"tcp:{STATUS_PORT}:interface=127.0.0.1",
        )
    ]
    for row in rows:
        options = registry.part(row.name, "service", "Options")
        kinds = ", ".join(f"{port} ({kind})" for kind, port in row.ports.items())
        lines += [
            f"[{row.name}]",
            f"# Its ports are {kinds} on 127.0.0.1 unless you say otherwise.",
        ]
        if names and row.name != "mtl":  # ZeroMQ has no TLS
            lines[-1] = f"# Its ports are {kinds}."
            lines += tls_lines(row, names)
        else:
            lines.append(f"# endpoint = [{toml_value(options.defaultEndpoint)}]")
        if shared:
            lines.append("reuse-port = true")
            lines += [f"{UNSHARED[row.name]} = true"] if row.name in UNSHARED else []
        lines.append("")
    return "\n".join(lines)


def program() -> list[str]:
    script = Path(sys.executable).with_name("msgproto")
    return [str(script)] if script.exists() else [sys.executable, "-m", "twisted_msgproto"]


def typed() -> str:
    """Return how a shell like the one that has called us finds our program."""
    return shlex.join(["msgproto"] if shutil.which("msgproto") else program())


def gateway_unit(directory: Path, user: str, queues: Path | None = None) -> str:
    """``queues``, a directory, makes it a template: a number for queue and loopback address."""
    words = [*program(), "gateway", "--config", str(directory / CONFIGURATION)]
    if queues is not None:
        page = f"tcp:{STATUS_PORT}:interface=127.0.0.{INSTANCE}"
        words += ["--queue", str(queues / INSTANCE), "--set", f"status.endpoint={page}"]
    return UNIT.format(
        description="msgproto gateway" + ("" if queues is None else " %i"),
        after="network-online.target",
        kind="notify",
        command=escaped(words).replace(INSTANCE, "%i"),
        directory=str(directory).replace("%", "%%"),
        user=user,
        stop_seconds=STOP_SECONDS,
        more="# It says that it is ready when it has read its queue, however long that takes.\n"
        f"TimeoutStartSec=infinity\nWatchdogSec={WATCHDOG_SECONDS}\n"
        f"LimitNOFILE={OPEN_FILES}\nExecReload=/bin/kill -HUP $MAINPID\n",
    )


def bridge_unit(directory: Path, user: str, queue: Path, table: str, gateways: list[str]) -> str:
    words = [*program(), "bridge", "--queue", str(queue), "--table", table]
    return UNIT.format(
        description="msgproto bridge into Spark",
        after=" ".join(("network-online.target", *gateways)),
        kind="exec",
        command=escaped(words),
        directory=str(directory).replace("%", "%%"),
        user=user,
        stop_seconds=STOP_SECONDS,
        more="",
    )


def escaped(words: list[str]) -> str:
    quoted = []
    for word in words:
        plain = word.replace("%", "%%").replace("$", "$$")
        if any(sign.isspace() or sign in "\"'\\;" for sign in plain):
            plain = '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
        quoted.append(plain)
    return " ".join(quoted)


def next_steps(
    directory: Path, queue: Path, table: str, protocols: list[str], names: list[str]
) -> Iterator[str]:
    yield from first_user(directory, protocols, names)
    file = shlex.quote(str(directory / CONFIGURATION))
    yield "Next, each in a terminal of its own:"
    yield f"  {typed()} gateway --config {file}"
    row = registry.registered(protocols[0])
    port = next(iter(row.ports.values()))
    if row.name == "lumberjack":
        where = f"tcp:127.0.0.1:{port}"
        if names:
            authority = shlex.quote(str(directory / AUTHORITY))
            where = f"tls:{names[0]}:{port} --tls-ca {authority}"
        yield f"  echo '{{\"hello\": 1}}' | {typed()} send lumberjack {where}"
    yield f"  {typed()} bridge --queue {shlex.quote(str(queue))} --table {shlex.quote(table)}"
    yield ""
    yield f"While the gateway runs, http://127.0.0.1:{STATUS_PORT} shows how it is."
    yield ""


def first_user(directory: Path, protocols: list[str], names: list[str]) -> Iterator[str]:
    asking = [name for name in protocols if names and name in ("sabc", "umq")]
    if asking:
        yield f"First, a user for {' and '.join(asking)}:"
        yield f"  {typed()} passwd {shlex.quote(str(directory / USERS))} NAME"
        yield ""


def steps_of_instances(
    directory: Path, queue: Path, table: str, protocols: list[str], names: list[str]
) -> Iterator[str]:
    yield from first_user(directory, protocols, names)
    left_out = [name for name in registry.PROTOCOLS if name not in protocols and refusal(name)]
    yield f"It serves no {', '.join(left_out)}, which cannot share a port."
    yield f"Instance NUMBER has the queue {queue}/NUMBER"
    yield f"and the page http://127.0.0.NUMBER:{STATUS_PORT}.  One bridge lands all queues."
    yield ""


def systemd_steps(directory: Path, units: list[str]) -> Iterator[str]:
    yield "For systemd:"
    gateways = " ".join(units)
    if units == [GATEWAY_UNIT]:
        gateways = shlex.quote(str(directory / GATEWAY_UNIT))
    else:
        yield f"  systemctl link {shlex.quote(str(directory / INSTANCE_UNIT.format('')))}"
    yield f"  systemctl enable --now {gateways}"
    yield f"  systemctl enable --now {shlex.quote(str(directory / BRIDGE_UNIT))}"
