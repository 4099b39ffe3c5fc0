"""Checkers of log-ins for ``--auth``: ``passwords:FILE``.

Nothing of ours is imported before one is made.
"""

from twisted.cred.credentials import IUsernameHashedPassword, IUsernamePassword
from twisted.cred.strcred import ICheckerFactory
from twisted.plugin import IPlugin
from zope.interface import implementer


@implementer(IPlugin, ICheckerFactory)
class _PasswordFileFactory:
    """``passwords:FILE``: a file that ``msgproto passwd`` writes."""

    authType = "passwords"
    authHelp = "A file of users with hashed passwords; msgproto passwd FILE NAME writes it."
    argStringFormat = "The path of the file."
    credentialInterfaces = (IUsernamePassword, IUsernameHashedPassword)

    def generateChecker(self, argstring):  # type: ignore[no-untyped-def]
        """As ICheckerFactory."""
        from twisted_msgproto.net.authentication import PasswordFile

        return PasswordFile(argstring)


passwords = _PasswordFileFactory()
