"""``twistd lines``."""

from twisted.application.service import ServiceMaker

lines = ServiceMaker("Lines", "msgproto_lines.service", "A server of lines.", "lines")
