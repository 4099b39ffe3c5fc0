"""``twistd -n msgproto --config gateway.toml``: runs every server of one file in one process.

The file has one table per server, named like its plugin, with the same keys as the plugin's
options, and tables that all servers share::

    [queue]                     # leave it out: acknowledged then means accepted, not on disk
    directory = "/var/spool/msgproto"
    max-bytes = "10GiB"

    [status]                    # the live page, /status.json, /metrics, /healthz
    endpoint = "tcp:8480:interface=127.0.0.1"

    [limits]                    # for every server that has a limit of this name
    handshake = 5

    [[access]]                  # who may what; leave it out to allow everything
    allow = "publish"
    address = "10.0.0.0/8"

    [lumberjack]
    endpoint = ["tcp:5044", "tls:/etc/msgproto/keys:5043"]
    limit = { window = 4096 }   # this server's own; wins over [limits]

The command line wins over the file.  An unknown table or key is an error that names it.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast

from twisted.application.service import IService
from twisted.python import usage

from . import registry
from .core.errors import ConfigurationError
from .core.limits import A_SIZE, Limits, read_size
from .core.loading import absolute, closest, read_toml
from .net.authentication.login_options import SCHEMES_WITHOUT_SECRETS
from .net.authorising import Rules
from .net.endpoint_strings import located
from .net.endpoints import check_endpoint, ports_of
from .net.gateway import Gateway
from .net.logs import twist_log
from .net.options import LOG_FLAGS, LegibleOptions, ServerOptions, parse_or_exit, usage_errors
from .net.process import (
    check_twistd,
    count_monotonically,
    forget_other_pid,
    share_processor,
    spare_lasting_objects,
)
from .net.reloading import Change

if TYPE_CHECKING:
    from .queue import QueueOptions


QUEUE_KEYS = ("directory", "max-bytes", "segment-bytes")  # sizes for the writer, but the directory
QUEUE_BYTES_LEAST = 1 << 20  # ``max-bytes``: smaller ones are full after a few messages

ACCESS = "access"

STATUS_KEYS = ("endpoint", "token-file")

SHARED = ("queue", "status", "limits", ACCESS)

OF_A_BRIDGE = ("table", "trigger", "max_rows")  # keys of the other program's file

ELSEWHERE = {
    "queue",
    "status",
    "status-token",
    "json-log",
    ACCESS,
    "help",
    "version",
    "help-auth",
    "help-auth-type",
}
"""These options of a single server's plugin make no sense in its table of the file."""

BELONGS: Mapping[str, str] = {
    "queue": "the queue of all servers is [queue] directory",
    "directory": "the queue of all servers is [queue] directory",
    "status": "the live page is [status] endpoint",
    "status-token": "the token of the live page is [status] token-file",
    "token-file": "the token of the live page is [status] token-file",
    ACCESS: "rules are tables [[access]], for all servers",
    "json-log": "it is a word of the command line, --json-log",
}
"""What is no key of a server's table → where it belongs."""

HIDDEN = "(hidden)"

SECRET_WORDS = ("password", "secret", "token")  # options with one in their name are not shown

Table = Mapping[str, Any]


class Options(LegibleOptions):
    """Run all servers of a gateway.toml in one process, over one durable queue."""

    optParameters: ClassVar[list[list[Any]]] = [
        ["config", "c", None, "The gateway.toml to run."],
        ["queue", "q", None, "Directory of the durable queue; wins over the file."],
        ["status", None, None, "Endpoint of the live page; wins over the file."],
        ["status-token", None, None, "File with the token of the live page; wins over the file."],
    ]
    optFlags: ClassVar[list[list[Any]]] = [
        *LOG_FLAGS,
        ["show-config", None, "Print what is in force as TOML (secrets hidden), and end."],
    ]

    def getDescription(self) -> str:
        about_the_file = (__doc__ or "").partition("\n\n")[2]
        return f"{super().getDescription()}\n\n{about_the_file}"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self["limit"] = []
        self["set"] = []
        self.path: Path = Path()

    def opt_limit(self, assignment: str) -> None:
        """A limit of every server that has it, as NAME=VALUE; wins over the file."""
        self["limit"].append(assignment)

    def opt_set(self, assignment: str) -> None:
        """Set one key of the file, given as TABLE.KEY=VALUE (VALUE as in TOML, or plain text)."""
        self["set"].append(assignment)

    def parseOptions(self, options: Any = None) -> None:
        parse_or_exit("msgproto", super().parseOptions, options)

    def postOptions(self) -> None:
        if self["config"] is None:
            raise usage.UsageError("--config FILE is needed")
        # Read again from another directory perhaps: twistd may go to one of its own.
        with usage_errors():
            self.path = absolute(self["config"])
            self["configuration"] = self.read()
        if self["show-config"]:
            print("\n".join(self["configuration"].lines()))
            raise SystemExit(0)
        forget_other_pid(self.parent)
        with usage_errors():
            check_twistd(self.parent)
        twist_log(self.parent, bool(self["json-log"]))

    def read(self) -> Configuration:
        try:
            return Configuration(self._tables())
        except ConfigurationError as error:
            raise ConfigurationError(f"{self['config']}: {error}") from None

    def _tables(self) -> dict[str, Any]:
        tables = read_file(self.path)
        if self["queue"] is not None:
            _merge(tables, "queue", "directory", self["queue"])
        for option, key in (("status", "endpoint"), ("status-token", "token-file")):
            if self[option] is not None:
                _merge(tables, "status", key, self[option])
        if self["log-sessions"]:
            for name in tables.keys() - set(SHARED):
                _merge(tables, name, "log-sessions", True)
        for assignment in self["limit"]:
            name, value = _pair(assignment, "--limit", "NAME=VALUE")
            _merge(tables, "limits", name, value)
        for assignment in self["set"]:
            place, value = _pair(assignment, "--set", "TABLE.KEY=VALUE")
            table, dot, key = place.partition(".")
            if not dot:
                raise ConfigurationError(f"--set takes TABLE.KEY=VALUE, not {assignment!r}")
            inner = tables.setdefault(table, {})
            if key.startswith("limit.") and isinstance(inner, dict):  # as --show-config has it
                _merge(inner, "limit", key.removeprefix("limit."), value)
            else:
                _merge(tables, table, key, value)
        return tables


def _pair(assignment: str, option: str, form: str) -> tuple[str, Any]:
    name, equals, text = assignment.partition("=")
    if not equals:
        raise ConfigurationError(f"{option} takes {form}, not {assignment!r}")
    try:
        return name, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return name, text


def _merge(tables: dict[str, Any], table: str, key: str, value: object) -> None:
    inner = tables.setdefault(table, {})
    if not isinstance(inner, dict):
        raise ConfigurationError(
            f"[{table}] is to be a table"
            if table != ACCESS
            else "--set cannot change [[access]]: write its rules into the file"
        )
    inner[key] = value


def read_file(path: Path) -> dict[str, Any]:
    """Return the file's tables, paths as its directory's; ConfigurationError if it cannot be."""
    directory = str(path.absolute().parent)
    return {name: _located(name, table, directory) for name, table in read_toml(path).items()}


def _located(name: str, table: Any, directory: str) -> Any:
    place: Callable[[str, str, str], str]
    if name in ("queue", "status"):
        place = _shared_path
    elif isinstance(table, Mapping) and name not in SHARED and name in registry.known():
        place = registry.part(name, "service", "Options").located
    else:
        return table
    if not isinstance(table, Mapping):
        return table

    def found(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [found(key, one) for one in value]
        return place(key, value, directory) if isinstance(value, str) and value else value

    return {key: found(key, value) for key, value in table.items()}


def _shared_path(key: str, value: str, directory: str) -> str:
    if key == "endpoint":
        return located(value, directory)
    return os.path.join(directory, value) if key in ("directory", "token-file") else value


class Configuration:
    """A gateway.toml, checked as far as it can be without opening anything."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        """Raises ConfigurationError that names the table and key that cannot be."""
        self.tables = tables  # what it was made of
        for name, table in tables.items():
            # Our own come first: without another package's nobody asks which there are.
            if name not in (*registry.PROTOCOLS, *SHARED) and name not in registry.known():
                if name in OF_A_BRIDGE:
                    raise ConfigurationError(
                        f"{name!r} is a key of a bridge.toml, which msgproto bridge --config takes"
                    )
                names = (*registry.known(), *SHARED)
                what = f"table [{name}]" if isinstance(table, Mapping | list) else f"key {name!r}"
                raise ConfigurationError(
                    f"unknown {what}{closest(name, names)}; known: {', '.join(names)}"
                )
            if name != ACCESS and not isinstance(table, Mapping):
                raise ConfigurationError(f"[{name}] is to be a table")
        self.queue: dict[str, Any] = _queue_keys(tables.get("queue"))  # empty without one
        self.status: dict[str, str] = _status_keys(tables.get("status"))
        self.access: Rules | None = None  # all is allowed
        if ACCESS in tables:
            self.access = Rules.of(tables[ACCESS])
            self.access.check_protocols(registry.known())
        self._limits: Table = tables.get("limits", {})
        self.servers: dict[str, ServerOptions] = {
            name: self._server(name, table) for name, table in tables.items() if name not in SHARED
        }
        if not self.servers:
            raise ConfigurationError(
                f"no server; a table of {', '.join(registry.known())} makes one"
            )
        for name in self._limits:
            if not any(name in options["limits"] for options in self.servers.values()):
                known = {limit for options in self.servers.values() for limit in options["limits"]}
                raise ConfigurationError(
                    f"[limits]: no server here has a limit {name!r}{closest(name, sorted(known))}"
                )
        self._check_ports()

    def _check_ports(self) -> None:
        """Raise ConfigurationError if two servers reuse one port: the system refuses nothing."""
        first: dict[tuple[str, int], str] = {}
        for name, options in self.servers.items():
            for text in options.endpointStrings() if options["reuse-port"] else ():
                for place in ports_of(text):
                    if place in first:
                        raise ConfigurationError(
                            f"[{name}]: {text!r}: [{first[place]}] has this port, too"
                        )
                    first[place] = name

    def _server(self, name: str, table: Table) -> ServerOptions:
        options = cast(ServerOptions, registry.part(name, "service", "Options")())
        limits: dict[str, Any] = {
            limit: value for limit, value in self._limits.items() if limit in options["limits"]
        }
        words = [f"--limit={limit}={value}" for limit, value in limits.items()]
        known = option_names(options)
        flags = {long for long in options.longOpt if not long.endswith("=")}
        for key, value in table.items():
            if key not in known:
                reason = BELONGS.get(key) or options.missing(key)
                if reason:
                    raise ConfigurationError(f"[{name}] {key}: {reason}")
                raise ConfigurationError(
                    f"[{name}]: unknown key {key!r}{closest(key, known)};"
                    f" known: {', '.join(sorted(known))}"
                )
            if key in flags and not isinstance(value, bool):
                raise ConfigurationError(f"[{name}]: {key} is true or false, not {value!r}")
            words += option_words(f"[{name}] {key}", key, value)
        if "authoriser" not in table:
            options.rules = self.access
        try:
            options.read(words)
        except usage.UsageError as error:
            raise ConfigurationError(f"[{name}]: {error}") from None
        return options

    def lines(self) -> Iterator[str]:
        """Yield what is in force, as TOML; secrets are hidden."""
        shared: list[tuple[str, Table]] = [("[queue]", self.queue), ("[status]", self.status)]
        if self.access is not None:
            shared += [(f"[[{ACCESS}]]", rule) for rule in self.access.tables()]
        for head, table in shared:
            if table:
                yield head
                yield from (f"{key} = {toml_value(value)}" for key, value in table.items())
                yield ""
        for name, options in self.servers.items():
            yield f"[{name}]"
            yield from (f"{key} = {toml_value(value)}" for key, value in _given(options))
            # A line that is hidden is a comment, so that what is printed can be read again.
            yield from (f"# {key} = {HIDDEN}: give it again" for key in _hidden(options))
            yield f"[{name}.limit]"
            limits = cast(Limits, options["limits"])
            yield from (f"{limit} = {toml_value(limits[limit])}" for limit in limits)
            yield ""


def option_names(options: ServerOptions) -> list[str]:
    return [name for long in options.longOpt if (name := long.rstrip("=")) not in ELSEWHERE]


def _given(options: ServerOptions) -> Iterator[tuple[str, object]]:
    flags = {long for long in options.longOpt if not long.endswith("=")}
    for name in option_names(options):
        # what may be repeated is kept as a list, under the option's name or its plural
        value = options.get(name, options.get(f"{name}s"))
        if name in flags:
            value = bool(value)
        elif name == "auth":
            value = [text for text in options.get(name, []) if not _secret(text)]
        if name != "limit" and value not in (None, []) and not _is_secret(name):
            yield name, value


def _hidden(options: ServerOptions) -> Iterator[str]:
    for name in option_names(options):
        if name == "auth":
            yield from [name for text in options.get(name, []) if _secret(text)]
        elif _is_secret(name) and options.get(name):
            yield name


def _is_secret(name: str) -> bool:
    return any(word in name for word in SECRET_WORDS)


def _secret(scheme: str) -> bool:
    return scheme.partition(":")[0] not in SCHEMES_WITHOUT_SECRETS


def option_words(place: str, key: str, value: object) -> list[str]:
    """Return the command line words that say what a key of the file says.

    A list repeats the option, a table gives NAME=VALUE each, true is the bare option and false
    leaves it out.  Raises ConfigurationError for any other type; ``place`` is for its text.
    """
    if isinstance(value, bool):
        return [f"--{key}"] if value else []
    if isinstance(value, str | int | float):
        return [f"--{key}={value}"]
    if isinstance(value, Mapping):
        return [f"--{key}={name}={one}" for name, one in value.items()]
    if isinstance(value, list):
        return [word for item in value for word in option_words(place, key, item)]
    raise ConfigurationError(f"{place}: cannot be a {type(value).__name__}")


def toml_value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    # JSON's texts, numbers and flags are TOML's, but for DEL
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _queue_keys(table: Table | None) -> dict[str, Any]:
    if table is None:
        return {}
    found = dict(table)
    for key, value in table.items():
        if key not in QUEUE_KEYS:
            raise ConfigurationError(
                f"[queue]: unknown key {key!r}{closest(key, QUEUE_KEYS)};"
                f" known: {', '.join(QUEUE_KEYS)}"
            )
        if key == "directory":
            if not isinstance(value, str):
                raise ConfigurationError(f"[queue]: {key} is a text, not {value!r}")
            continue
        if isinstance(value, str):
            with suppress(ValueError):
                value = found[key] = read_size(value)
        if type(value) is not int:
            raise ConfigurationError(f"[queue]: {key} is {A_SIZE}, not {value!r}")
        if value < 0:
            raise ConfigurationError(f"[queue]: {key} is at least 0, not {value!r}")
    if found.get("max-bytes", QUEUE_BYTES_LEAST) < QUEUE_BYTES_LEAST:
        raise ConfigurationError(
            f"[queue]: max-bytes is at least {QUEUE_BYTES_LEAST}, not {table['max-bytes']!r}"
        )
    if not table.get("directory"):
        raise ConfigurationError("[queue]: directory is missing")
    if "://" in table["directory"]:
        raise ConfigurationError("[queue]: directory is one of this machine, not an address")
    return found


def _status_keys(table: Table | None) -> dict[str, str]:
    if table is None:
        return {}
    for key, value in table.items():
        if key not in STATUS_KEYS:
            raise ConfigurationError(
                f"[status]: unknown key {key!r}{closest(key, STATUS_KEYS)};"
                f" known: {', '.join(STATUS_KEYS)}"
            )
        if not isinstance(value, str):
            raise ConfigurationError(f"[status]: {key} is a text, not {value!r}")
    if not table.get("endpoint"):
        raise ConfigurationError("[status]: endpoint is missing")
    try:
        check_endpoint(table["endpoint"])
    except ConfigurationError as error:
        raise ConfigurationError(f"[status]: {error}") from None
    return dict(table)


class FileAgain:
    """Reads a gateway.toml again: its rules change; other changes are named, for the next start."""

    def __init__(self, options: Options, gateway: Gateway) -> None:
        self._options = options
        self._gateway = gateway
        self._running: Configuration = options["configuration"]
        self._newest = self._running

    def reread(self) -> Iterator[Change]:
        newest = self._options.read()
        path = self._options["config"]
        yield Change(f"msgproto: {path}", partial(self._take, newest))

    def _take(self, newest: Configuration) -> None:
        self._newest = newest
        for factory in self._gateway.factories:
            options = self._running.servers.get(factory.protocolName)
            if options is None or (options["access"] is None and options["authoriser"] is None):
                # Others have rules or an authoriser of their own.
                factory.authoriser = newest.access

    def later(self) -> list[str]:
        return list(changed_keys(self._running.tables, self._newest.tables))


def changed_keys(before: Table, after: Table) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if name == ACCESS:
            continue
        if old is None or new is None:
            yield f"[{name}]"
        else:
            for key in dict.fromkeys((*old, *new)):
                if old.get(key) != new.get(key):
                    yield f"[{name}] {key}"


def make_gateway(
    configuration: Configuration, reactor: Any, **queue_options: Unpack[QueueOptions]
) -> Gateway:
    """Return the services of the file; ConfigurationError for what can be told before they
    start.

    ``queue_options`` are what QueueWriter takes beside the keys of the file.
    """
    keys = {key.replace("-", "_"): value for key, value in configuration.queue.items()}
    keys |= queue_options
    gateway = Gateway(reactor, keys.pop("directory", None), title="msgproto", **keys)
    for name, options in configuration.servers.items():
        try:
            server = registry.part(name, "service", "serve")(options, gateway)
        except ConfigurationError as error:
            raise ConfigurationError(f"[{name}]: {error}") from error
        server.setServiceParent(gateway)
    status = configuration.status
    try:
        gateway.showStatus(status.get("endpoint"), status.get("token-file"))
    except ConfigurationError as error:
        raise ConfigurationError(f"[status]: {error}") from None
    return gateway


def makeService(options: Options) -> IService:
    from twisted.internet import reactor

    count_monotonically(reactor)
    cast(Any, reactor).callWhenRunning(spare_lasting_objects)
    share_processor()
    try:
        gateway = make_gateway(options["configuration"], reactor)
    except ConfigurationError as error:
        raise SystemExit(f"msgproto: {options['config']}: {error}") from None
    again = FileAgain(options, gateway)
    gateway.rereads.append(again.reread)
    gateway.laterChanges = again.later
    gateway.reloadOnHangUp()
    gateway.tellsSystemd(os.environ)
    gateway.logsFor(options)
    return gateway
