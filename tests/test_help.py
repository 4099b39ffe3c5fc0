"""``--help`` of every plugin is a page that people can read (FC-01)."""

import re

import pytest

from tests.docs import limits as limits_page
from twisted_msgproto import registry
from twisted_msgproto.core.limits import Limit, amount
from twisted_msgproto.gateway import Options as GatewayOptions
from twisted_msgproto.net.help import limits_table, paragraphs


def page_of(protocol, width=80):
    return registry.part(protocol, "service", "Options")().getUsage(width)


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_help_has_a_row_for_every_limit_with_its_default_and_unit__FC_01(protocol):
    options = registry.part(protocol, "service", "Options")()
    lines = options.getUsage(100).splitlines()
    for limit in options["limits"].table.values():
        row = next(line for line in lines if line.split()[:1] == [limit.name])
        assert amount(limit.default, limit.unit) in row
        assert limit.reason.split()[0] in row


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_help_breaks_no_name_and_writes_no_number_with_an_exponent__FC_01(protocol):
    for width in (60, 80, 100):
        page = page_of(protocol, width)
        assert not re.search(r"\d(\.\d+)?e[+-]?\d", page)
        tables = page[page.index("Limits of every server") :]
        broken = [line for line in tables.splitlines() if line.endswith("-")]
        assert not broken
        for line in tables.splitlines():
            assert len(line) <= width


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_help_begins_with_what_it_is_and_has_an_example__FC_01(protocol):
    page = page_of(protocol)
    assert page.index("For example:") < page.index("Options:") < page.index("Limits of every")
    assert f"\n  twistd -n {protocol} --endpoint " in page


def test_the_gateways_help_shows_a_file_as_it_is_written__FC_01():
    page = GatewayOptions().getUsage(80)
    assert '\n    [lumberjack]\n    endpoint = ["tcp:5044"' in page
    assert page.index("[lumberjack]") < page.index("--config=")


def test_the_page_of_limits_is_as_the_tables_are__FC_01():
    assert limits_page.PAGE.read_text() == limits_page.page(), "run python -m tests.docs.limits"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (64 << 20, "octets", "64 MiB"),
        (16 << 10, "octets/s", "16 KiB/s"),
        (1 << 30, "octets", "1 GiB"),
        (1000, "octets", "1,000 octets"),
        (0, "octets", "0 octets"),
        (10_000, "connections", "10,000 connections"),
        (0.5, "s", "0.5 s"),
        (1048576, "characters", "1,048,576 characters"),
    ],
)
def test_amounts_are_as_people_write_them(value, unit, text):
    assert amount(value, unit) == text


def test_a_narrow_terminal_has_the_reason_below_the_name():
    table = limits_table("Limits:", [Limit("a-long-name-of-a-limit", 3600.0, "s", "why")], 40)
    assert table == "Limits:\n  a-long-name-of-a-limit  3,600 s\n    why"


def test_paragraphs_are_filled_and_examples_are_left_alone():
    text = "One\ntwo three::\n\n    a  = b\n    c = d\n\nFour."
    assert paragraphs(text, 80) == "One two three:\n\n    a  = b\n    c = d\n\nFour."
