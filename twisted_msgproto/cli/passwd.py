"""Set or remove a user in a file of passwords, which --auth passwords:FILE reads.

The password is asked for twice on a terminal; otherwise it is the first line of standard input.  A
server reads the file again at the next log-in: no reload is needed.
"""

from __future__ import annotations

import getpass
import sys
from io import StringIO
from types import SimpleNamespace

from twisted_msgproto.core.errors import ConfigurationError

from .options import FILE, argument, command, flag


@command(__doc__)
@argument("file FILE", "the file, made if need be; its mode is 0600", FILE)
@argument("name NAME", "the user")
@flag("--delete", "remove this user")
def run(arguments: SimpleNamespace) -> int:
    from twisted_msgproto.net.authentication.password_file import write_user

    password = None if arguments.delete else _asked()
    try:
        had = write_user(arguments.file, arguments.name, password)
    except OSError as error:
        raise ConfigurationError(f"{arguments.file}: {error.strerror}") from None
    if arguments.delete and not had:
        raise ConfigurationError(f"{arguments.file} has no user {arguments.name!r}")
    done = "removed" if arguments.delete else "changed" if had else "added"
    print(f"{arguments.name}: {done}")
    return 0


def _asked() -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if getpass.getpass("Once more: ") != password:
            raise ConfigurationError("the two passwords are not the same; nothing is changed")
    else:
        password = (sys.stdin or StringIO()).readline().rstrip("\r\n")
    if not password:
        raise ConfigurationError("an empty password; nothing is changed")
    return password
