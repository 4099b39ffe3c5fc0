"""Print a script that completes the words of msgproto in bash, zsh or fish.

\b
  bash   msgproto completion bash > ~/.local/share/bash-completion/completions/msgproto
  zsh    msgproto completion zsh > ~/.zfunc/_msgproto      (a directory of $fpath)
  fish   msgproto completion fish > ~/.config/fish/completions/msgproto.fish

The script asks msgproto itself what may come next.
"""

from __future__ import annotations

from types import SimpleNamespace

import click
from click.shell_completion import get_completion_class

from .options import argument, command


@command(__doc__)
@argument("shell", "whose script to print", click.Choice(["bash", "fish", "zsh"]))
def run(arguments: SimpleNamespace) -> int:
    from . import COMPLETING, msgproto

    shell = get_completion_class(arguments.shell)
    assert shell is not None
    print(shell(msgproto, {}, "msgproto", COMPLETING).source())
    return 0
