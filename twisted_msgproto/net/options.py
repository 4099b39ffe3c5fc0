"""Every twistd plugin of the package has these options; they are checked before anything starts.

A usage error is one line: nothing an operator types ends in a traceback.  ``--help`` is a page that
people can read: what it is, the options, and the limits as a table.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import cleandoc
from typing import Any, ClassVar, Final, cast

from twisted.python import usage

from ..core.errors import ConfigurationError
from ..core.limits import Limit, Limits, amount
from ..core.loading import failure_text, import_object
from ..registry import PROTOCOLS, part, registered_sink
from .authorising import IAuthoriser, Rules, read_rules
from .endpoint_strings import located
from .endpoints import TCP_KINDS, check_endpoint, exposure, kind_of
from .factory import COMMON_LIMITS, MsgprotoServerFactory
from .logs import twist_log
from .process import check_twistd, forget_other_pid
from .reloading import Change
from .sink import IMessageSink

WIDTH_LEAST = 40

WIDTH_MOST = 100

INDENT = "  "


def terminal_width() -> int:
    return max(WIDTH_LEAST, min(shutil.get_terminal_size().columns, WIDTH_MOST))


def paragraphs(text: str, width: int) -> str:
    """Return ``text`` with every paragraph filled, but for those that are indented."""
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else _wrapped(" ".join(paragraph.split()), width)
        for paragraph in cleandoc(text).split("\n\n")
    )


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        text,
        width,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def limits_table(title: str, limits: Iterable[Limit], width: int) -> str:
    rows = [(limit.name, amount(limit.default, limit.unit), limit.reason) for limit in limits]
    name_width = max(len(name) for name, _, _ in rows)
    default_width = max(len(default) for _, default, _ in rows)
    begin = len(INDENT) + name_width + len(INDENT) + default_width + len(INDENT)
    lines = [title]
    for name, default, reason in rows:
        start = f"{INDENT}{name:<{name_width}}{INDENT}{default:>{default_width}}{INDENT}"
        if width - begin >= WIDTH_LEAST // 2:
            lines.append(_wrapped(start + reason, width, " " * begin))
        else:
            lines += [start.rstrip(), _wrapped(INDENT * 2 + reason, width, INDENT * 2)]
    return "\n".join(lines)


class LegibleOptions(usage.Options):
    """Options whose ``--help`` says what they are for, in paragraphs, before it lists them.

    Twisted makes one paragraph of everything that is not an option, and breaks names at hyphens.
    """

    longdesc = ""  # Twisted would take the main program's

    def getDescription(self) -> str:
        """Return what ``--help`` says before the options."""
        return cleandoc(type(self).__doc__ or "")

    def parseArgs(self, *words: str) -> None:
        if words:
            raise usage.UsageError(f"{words[0]!r} belongs to no option; --help lists the options")

    def getTables(self, width: int) -> list[str]:
        """Return what ``--help`` says after the options; ``width`` is in characters."""
        return []

    def getUsage(self, width: int | None = None) -> str:
        width = terminal_width() if width is None else width
        options = super().getUsage(width).rstrip()
        parts = [paragraphs(self.getDescription(), width), options, *self.getTables(width)]
        return "\n" + "\n\n".join(parts) + "\n"


# ── the options of all servers ────────────────────────────────────────────────────────────────────


STATUS_PARAMETERS: Final = (
    ["status", None, None, "Endpoint of the live page, /status.json, /metrics and /healthz."],
    ["status-token", None, None, "File with the token that the status endpoint wants."],
)


LOG_FLAGS: Final = (
    ["log-sessions", None, "Log a line when a session begins and one when it ends."],
    ["json-log", None, "Log one JSON object a line."],
)


TLS_WORDS: Final = (
    *("tls", "ssl", "cert", "certificate", "key", "privateKey", "certKey", "caCerts", "ca"),
    *("tls-cert", "tls-key", "tls-ca"),
)

INSTEAD: Final[Mapping[str, str]] = {
    "auth": "{title} has no log-ins: use mtls: (TLS with certificates of clients)",
    "websocket": "{title} has no WebSocket",
    "origin": "{title} has no WebSocket, so no web page can connect",
    **dict.fromkeys(
        ("curve-key", "curve-authorized"),
        "CURVE is for MTL alone: use mtls: (TLS with certificates of clients)",
    ),
    **dict.fromkeys(TLS_WORDS, 'it is a part of the endpoint: "tls:DIRECTORY:PORT"'),
    **dict.fromkeys(
        ("port", "host", "address", "listen", "bind", "interface"),
        'it is a part of the endpoint: "tcp:PORT:interface=ADDRESS"',
    ),
    "endpoints": "write endpoint = [...]",
    "limits": "write limit = {{ NAME = VALUE }}, or a table [limits] for all servers",
}


class ServerOptions(LegibleOptions):
    """Parses the options that all servers have; a protocol's own options are a subclass.

    A subclass sets :attr:`protocolName`, :attr:`defaultEndpoint`, :attr:`LIMITS` and
    :attr:`serverFactory`, and adds ``optParameters``, ``optFlags`` and ``opt_…`` methods as
    :class:`usage.Options` has them.

    After parsing, ``options["endpoints"]`` is a list of endpoint strings, ``options["limits"]`` a
    :class:`~twisted_msgproto.core.limits.Limits`, ``options["queue"]`` a directory or None,
    ``options["class"]``, ``options["sink"]``, ``options["access"]`` and ``options["authoriser"]``
    are what was given, or None.

    Attributes:
        rules: the rules of the file named by ``access``, or None.
        subclass: the class named by ``class``, or None.
        makers: make what ``sink`` and ``authoriser`` name, for a gateway.
    """

    protocolName: ClassVar[str]
    defaultEndpoint: ClassVar[str]
    LIMITS: ClassVar[tuple[Limit, ...]] = ()

    serverFactory: ClassVar[type[MsgprotoServerFactory]]
    """This factory makes the connections; ``class`` may name a subclass of it."""

    serverClass: ClassVar[type | None] = None
    """``class`` may also name a subclass of this; None stands for the factory's ``protocol``."""

    instead: ClassVar[Mapping[str, str]] = {}
    """Options that this server has not → what to write instead, beside :data:`INSTEAD`."""

    _accessFile = ""
    rules: Rules | None = None
    subclass: type | None = None

    optParameters: ClassVar[list[list[Any]]] = [
        [
            "queue",
            "q",
            None,
            "Directory of the durable queue: acknowledged then means on disk. "
            "Without it acknowledged means accepted.",
        ],
        *STATUS_PARAMETERS,
    ]

    optFlags: ClassVar[list[list[Any]]] = [
        *LOG_FLAGS,
        ["reuse-port", None, "Other gateways may listen on the same TCP ports (SO_REUSEPORT)."],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self["endpoints"] = []
        for name in ("class", "sink", "turn-warn", "access", "authoriser"):
            self[name] = None
        self["limits"] = self.defaultLimits()
        self.makers: dict[str, Callable[[Any], Any]] = {}

    def getDescription(self) -> str:
        return (
            f"{super().getDescription()}\n\n"
            f"Without an endpoint it listens on {self.defaultEndpoint}.  For example:\n\n"
            f"  twistd -n {self.protocolName} --endpoint {self.defaultEndpoint}"
            " --queue /var/spool/msgproto"
        )

    def getTables(self, width: int) -> list[str]:
        tables = self.limitTables().items()
        return [limits_table(title, limits, width) for title, limits in tables if limits]

    @classmethod
    def limitTables(cls) -> Mapping[str, Sequence[Limit]]:
        limits = cls.defaultLimits().table.values()
        shared = [limit for limit in limits if limit in COMMON_LIMITS]
        own = [limit for limit in limits if limit not in COMMON_LIMITS]
        return {
            "Limits of every server (--limit NAME=VALUE):": shared,
            f"Limits of {cls.protocolName} (--limit NAME=VALUE):": own,
        }

    def parseOptions(self, options: Any = None) -> None:
        """Parse for twistd: a usage error is one line on stderr and exit status 1."""
        parse_or_exit(self.protocolName, self.read, options)

    def read(self, words: Sequence[str] | None) -> None:
        """Read the options; raises UsageError for what cannot be."""
        for word in words or ():
            # One that we have not could be taken for the beginning of one that we have.
            name = word[2:].partition("=")[0] if word.startswith("--") else ""
            reason = self.missing(name) if name and name not in self.names() else ""
            if reason:
                raise usage.UsageError(f"--{name}: {reason}")
        super().parseOptions(words)  # type: ignore[no-untyped-call]

    def _checkReuse(self) -> None:
        if not self["reuse-port"]:
            return
        refusal = self.sharingRefusal()
        if refusal is not None:
            raise usage.UsageError(f"reuse-port cannot be true here: {refusal}")
        for description in self.endpointStrings():
            if kind_of(description) not in TCP_KINDS:
                raise usage.UsageError(
                    f"reuse-port is for TCP ports, and {description!r} is none: leave one of them"
                    " out"
                )

    def sharingRefusal(self) -> str | None:
        """Return why several gateways cannot share a port of this server; None if they can.

        They cannot if a connection needs what another one has left in the memory of its process.
        """
        return None

    @classmethod
    def defaultLimits(cls) -> Limits:
        return Limits.of(COMMON_LIMITS, cls.LIMITS)

    def listenAddresses(self) -> list[str]:
        """Return the strings of all endpoints, of whatever kind, to listen on."""
        return list(self["endpoints"])

    def endpointStrings(self) -> list[str]:
        """Return the strings of Twisted's endpoints to listen on."""
        return list(self["endpoints"])

    def opt_endpoint(self, description: str) -> None:
        """A Twisted server endpoint string to listen on; may be given more than once."""
        self["endpoints"].append(description)

    opt_e = opt_endpoint

    def opt_limit(self, assignment: str) -> None:
        """A limit, as NAME=VALUE; may be given more than once (names below)."""
        name, equals, value = assignment.partition("=")
        if not equals:
            raise usage.UsageError(f"--limit takes NAME=VALUE, not {assignment!r}")
        with usage_errors():
            self["limits"] = cast(Limits, self["limits"]).replace({name: value})

    def opt_turn_warn(self, milliseconds: str) -> None:
        """Log and count input that needs more ms of CPU time than this in one turn (0: none)."""
        try:
            value = float(milliseconds)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise usage.UsageError(f"--turn-warn takes a time in ms, not {milliseconds!r}")
        self["turn-warn"] = value

    def opt_class(self, name: str) -> None:
        """Run this subclass of the server or of its factory instead; it is MODULE:NAME."""
        server = self.serverClass or getattr(self.serverFactory, "protocol", None)
        bases = [base for base in (server, self.serverFactory) if base is not None]
        with usage_errors(f"class {name!r}: "):
            found = import_object(name)[1]
        if not isinstance(found, type) or not issubclass(found, tuple(bases)):
            names = " or ".join(f"{base.__module__}.{base.__name__}" for base in bases)
            raise usage.UsageError(f"class {name!r}: it has to be a subclass of {names}")
        self.subclass = found
        self["class"] = name

    def opt_sink(self, name: str) -> None:
        """Messages are made safe by this sink: a registered name, or MODULE:NAME."""
        with usage_errors(f"sink {name!r}: "):
            found = import_object(name)[1] if ":" in name else registered_sink(name)
        self._take("sink", name, found, IMessageSink)

    def _take(self, option: str, name: str, found: Any, interface: Any) -> None:
        what = f"{option} {name!r}"
        if not callable(found):
            raise usage.UsageError(f"{what}: it has to be a class or a function")
        if isinstance(found, type) and not interface.implementedBy(found):
            raise usage.UsageError(
                f"{what}: the class has to be an @implementer({interface.__name__}) of"
                " twisted_msgproto"
            )
        self.makers[option] = partial(_made, what, found, interface)
        self[option] = name

    def opt_access(self, path: str) -> None:
        """Clients may do what the rules of this TOML file allow ([[access]]), and nothing else."""
        self["access"] = path
        # Read again from another directory perhaps: twistd may go to one of its own.
        self._accessFile = os.path.abspath(path)
        with usage_errors():
            self.rules = self.readRules()

    def readRules(self) -> Rules:
        """Read the file that ``--access`` names; raises ConfigurationError."""
        try:
            rules = read_rules(self._accessFile)
            rules.check_protocols([self.protocolName])
        except ConfigurationError as error:
            raise ConfigurationError(f"--access {self['access']}: {error}") from None
        return rules

    def reread(self) -> Iterable[Change]:
        """Yield what a reload changes of this server."""
        return ()

    def opt_authoriser(self, name: str) -> None:
        """Clients may do what this object of your own allows; it is MODULE:NAME."""
        with usage_errors(f"authoriser {name!r}: "):
            found = import_object(name)[1]
        self._take("authoriser", name, found, IAuthoriser)

    def postOptions(self) -> None:
        if self["access"] is not None and self["authoriser"] is not None:
            raise usage.UsageError("--access and --authoriser exclude each other")
        self._checkActions()
        forget_other_pid(self.parent)
        with usage_errors():
            check_twistd(self.parent)
        twist_log(self.parent, bool(self["json-log"]))
        if not self["endpoints"]:
            self["endpoints"] = [self.defaultEndpoint]
        self._checkReuse()
        for description in self["endpoints"]:
            self.checkEndpoint(description)
        if self["status"] is not None:
            with usage_errors():
                check_endpoint(self["status"])

    def names(self) -> list[str]:
        """Return the names of all options."""
        return [long.rstrip("=") for long in self.longOpt]

    def missing(self, name: str) -> str:
        """Return why there is no option of this name here, and what to write; "" for any word."""
        found = self.instead.get(name) or INSTEAD.get(name)
        if found is not None:
            row = PROTOCOLS.get(self.protocolName)
            return found.format(title=self.protocolName if row is None else row.title)
        others = [one for one in PROTOCOLS if name in part(one, "service", "Options")().names()]
        return f"it is an option of {', '.join(others)}" if others else ""

    def exposures(self) -> list[str]:
        """Return a warning for each endpoint that other machines reach without encryption."""
        return [why for why in map(exposure, self.endpointStrings()) if why is not None]

    @classmethod
    def located(cls, key: str, value: str, directory: str) -> str:
        """Return an option's value with relative paths in it made those of ``directory``.

        A subclass does so for options of its own that name files.
        """
        return located(value, directory) if key in ("endpoint", "websocket") else value

    def passwordWarning(self) -> str | None:
        """Return what is wrong with how passwords are kept, or None."""
        return None

    def authWarning(self) -> str | None:
        """Return why rules about users mean little here, or None."""
        return None

    def _checkActions(self) -> None:
        given = self.rules is not None or self["authoriser"] is not None
        if given and not self.serverFactory.actions:
            raise usage.UsageError(
                f"{self.protocolName} does not ask who may what: rules ([[access]]) and authorisers"
                " cannot restrict it, so it is not run beside them"
            )

    def checkEndpoint(self, description: str) -> None:
        """Raise UsageError if this is no endpoint to listen on."""
        with usage_errors():
            check_endpoint(description)


@contextmanager
def usage_errors(what: str = "") -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise usage.UsageError(f"{what}{error}") from None


def _made(what: str, maker: Callable[[Any], object], interface: Any, gateway: Any) -> Any:
    try:
        made = maker(gateway)
    except Exception as error:
        raise ConfigurationError(f"{what}: making it failed: {failure_text(error)}") from error
    if not interface.providedBy(made):
        kind = type(made).__name__
        raise ConfigurationError(f"{what}: it returned a {kind}, no {interface.__name__}")
    return made


def parse_or_exit(
    name: str, parse: Callable[[Sequence[str] | None], None], words: Sequence[str] | None
) -> None:
    """Parse; SystemExit with one line for a usage error (twistd prints the whole help above it)."""
    try:
        parse(words)
    except usage.UsageError as error:
        raise SystemExit(f"{name}: {error}") from None
