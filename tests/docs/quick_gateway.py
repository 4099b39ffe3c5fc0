"""A gateway that samples its flow often, so that a picture shows 15 minutes after some seconds.

``python -m tests.docs.quick_gateway --config FILE``
"""

import sys

from twisted_msgproto import cli
from twisted_msgproto.net import counters

SAMPLE_SECONDS = 0.1

if __name__ == "__main__":
    counters.SAMPLE_SECONDS = SAMPLE_SECONDS  # type: ignore[misc]
    sys.exit(cli.main(["gateway", *sys.argv[1:]]))
