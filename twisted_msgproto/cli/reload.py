"""Let a running gateway read certificates, authorised keys, password files, rules and tokens again.

WHERE is the queue's directory (the gateway is asked through its socket there) or the URL of its
status endpoint.  No connection is lost.  If a file is broken, everything stays as it was, one line
says which file it is, and the exit status is 2.  SIGHUP does the same and writes to the log.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

from .options import as_json, command, where


@command(__doc__)
@where("the queue's directory of a gateway, or http://HOST:PORT")
@as_json
def run(arguments: SimpleNamespace) -> int:
    from ..net.reloading import told
    from ..net.site.client import GatewayBroker

    gateway = GatewayBroker(arguments.where, arguments.token_file, authority=arguments.tls_ca)
    done = gateway.reload()
    if arguments.json:
        print(json.dumps(done, ensure_ascii=False))
        return 0
    lines = list(told(done["done"], done["later"]))
    print("\n".join(lines or ["the gateway has no file to read again"]))
    return 0
