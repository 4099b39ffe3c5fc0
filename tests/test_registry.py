"""Protocols and sinks of other packages: found by entry points, and a broken one breaks nothing.

``--help`` of every plugin is a page that people can read (FC-01).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs import limits as limits_page
from tests.tools.processes import msgproto
from twisted_msgproto import cli, registry
from twisted_msgproto.cli import demo
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.core.limits import amount
from twisted_msgproto.gateway import Configuration
from twisted_msgproto.gateway import Options as GatewayOptions

GOOD = """
from twisted_msgproto.registry import LOOPBACK, Registered
ROW = Registered("NAME", "A name", "PACKAGE", {"tcp": 1}, {"endpoint": [LOOPBACK]})
OTHER = ROW._replace(name="other")
"""

SERVICE = """
from twisted_msgproto.lumberjack.service import Options as Base, serve
class Options(Base):
    protocolName = "NAME"
"""


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(
        self,
        package: str,
        text: str = GOOD,
        *,
        protocol: str = "fake",
        value: str | None = None,
        group: str = "twisted_msgproto.protocols",
        **modules: str,
    ) -> None:
        place = self.directory / package
        place.mkdir()
        modules = {"__init__": text, "service": SERVICE, "command": "send = 1", **modules}
        for name, module in modules.items():
            filled = module.replace("NAME", protocol).replace("PACKAGE", package)
            (place / f"{name}.py").write_text(filled)
        meta = self.directory / f"{package}-1.0.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        entry = f"[{group}]\n{protocol} = {value or package + ':ROW'}\n"
        (meta / "entry_points.txt").write_text(entry)
        registry.forget()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    registry.forget()
    yield Site(tmp_path)
    registry.forget()
    for name in set(sys.modules) - before:
        if name.split(".")[0].startswith("pack_"):
            del sys.modules[name]


def one_line(caught: Any) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_our_own_need_no_metadata(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    assert registry.known() == list(registry.PROTOCOLS)
    assert registry.registered("mtl").title == "MTL"


def test_another_packages_protocol_is_found_and_imported_late(site: Site) -> None:
    import sys

    site.add("pack_a")
    assert registry.known()[-1] == "fake"
    assert "pack_a" not in sys.modules
    assert registry.registered("fake").package == "pack_a"
    assert registry.part("fake", "command", "send") == 1
    configuration = Configuration({"fake": {"endpoint": [registry.LOOPBACK]}})
    assert configuration.servers["fake"]["endpoints"] == [registry.LOOPBACK]


BROKEN = {
    "import no_such_library": "ModuleNotFoundError: No module named 'no_such_library'",
    "def f(:": "SyntaxError",
    "raise RuntimeError('first\\nsecond')": r"RuntimeError: first\)",
    "import sys; sys.exit(3)": "SystemExit: 3",
    "": "AttributeError: .*ROW",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_package_is_one_line_which_names_it_and_the_rest_goes_on(
    site: Site, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """FC-05"""
    site.add("pack_broken", text, protocol="broken")
    site.add("pack_good")
    with pytest.raises(ConfigurationError, match=BROKEN[text]) as caught:
        registry.registered("broken")
    line = one_line(caught)
    assert line.startswith("protocol 'broken': the package pack_broken 1.0 is broken (")
    assert line.endswith("): repair it or uninstall it")
    assert list(Configuration({"lumberjack": {}, "fake": {}}).servers) == ["lumberjack", "fake"]
    with pytest.raises(
        ConfigurationError, match=r"the package pack_broken 1\.0 is broken"
    ) as caught:
        Configuration({"lumberjack": {}, "broken": {}})
    one_line(caught)
    assert list(demo.shown_protocols()) == [*registry.PROTOCOLS, "fake"]
    assert capsys.readouterr().err == f"msgproto demo: {line}\n"
    assert cli.main(["send", "broken", "tcp:127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == f"msgproto send: {line}\n"


@pytest.mark.parametrize(
    ("modules", "complaint"),
    [
        ({"service": "import no_such_library"}, "No module named 'no_such_library'"),
        ({"service": ""}, "AttributeError: .* 'serve'"),
        ({"command": ""}, "AttributeError: .* 'send'"),
    ],
)
def test_a_package_which_lacks_a_part_is_left_out_of_the_demo(
    site: Site, modules: dict[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    site.add("pack_a", **modules)
    assert list(demo.shown_protocols()) == list(registry.PROTOCOLS)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "the package pack_a 1.0 is broken" in told
    assert re.search(complaint, told)


@pytest.mark.parametrize(
    ("protocol", "value", "complaint"),
    [
        ("queue", None, "a protocol cannot have this name"),
        ("bench-me", None, "a protocol cannot have this name"),
        ("fake", "pack_a:LOOPBACK", r"'pack_a:LOOPBACK' is no .*Registered of this name"),
        ("fake", "pack_a", r"'pack_a' is no .*Registered of this name"),
        ("fake", "pack_a:OTHER", r"'pack_a:OTHER' is no .*Registered of this name"),
    ],
)
def test_an_entry_point_which_cannot_be_is_one_line(
    site: Site, protocol: str, value: str | None, complaint: str
) -> None:
    site.add("pack_a", protocol=protocol, value=value)
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        registry.registered(protocol)
    assert "pack_a 1.0" in one_line(caught)


def test_two_packages_of_one_name_are_named_both(site: Site) -> None:
    site.add("pack_a")
    site.add("pack_b")
    with pytest.raises(ConfigurationError) as caught:
        registry.registered("fake")
    assert one_line(caught) == (
        "protocol 'fake' comes from more than one package, pack_a 1.0 and pack_b 1.0: uninstall one"
    )


def test_nobody_takes_the_place_of_ours(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("pack_a", protocol="umq")
    assert registry.registered("umq").package == "twisted_msgproto.umq"
    assert registry.known() == list(registry.PROTOCOLS)
    assert list(demo.shown_protocols()) == list(registry.PROTOCOLS)
    assert capsys.readouterr().err == (
        "msgproto demo: protocol 'umq' of the package pack_a 1.0 is not used: it is one of ours\n"
    )


def test_a_package_with_damaged_metadata_is_still_one_line(site: Site) -> None:
    site.add("pack_a", "import no_such_library")
    (site.directory / "pack_a-1.0.dist-info" / "METADATA").unlink()
    registry.forget()
    with pytest.raises(ConfigurationError, match="is broken") as caught:
        registry.registered("fake")
    one_line(caught)


def test_an_unknown_table_or_protocol_names_those_of_other_packages_too(site: Site) -> None:
    site.add("pack_a")
    with pytest.raises(ConfigurationError, match=r"\[lumberyard\] .*; known: .*, mtl, fake, queue"):
        Configuration(tomllib.loads("[lumberyard]"))
    assert "known: lumberjack, micromsg2, sabc, umq, mtl, fake" in msgproto(
        "recv", "lumberyard", status=2
    )


def test_a_protocol_without_a_demo_or_rows_is_in_neither(site: Site) -> None:
    quiet = GOOD.replace('{"endpoint": [LOOPBACK]}', "{}")
    site.add("pack_a", quiet)
    assert list(demo.shown_protocols()) == list(registry.PROTOCOLS)


def test_sinks_are_found_the_same_way(site: Site) -> None:
    site.add("pack_a", "ROW = 7", protocol="mine", group="twisted_msgproto.sinks")
    site.add("pack_b", "nothing", protocol="bad", group="twisted_msgproto.sinks")
    assert registry.known_sinks() == ["bad", "mine"]
    assert registry.registered_sink("mine") == 7
    with pytest.raises(ConfigurationError, match=r"sink 'bad': the package pack_b 1\.0 is broken"):
        registry.registered_sink("bad")
    with pytest.raises(ConfigurationError, match=r"known: bad, mine.*nor is it MODULE:NAME"):
        registry.registered_sink("nobody")


def page_of(protocol, width=80):
    return registry.part(protocol, "service", "Options")().getUsage(width)


@pytest.mark.parametrize("protocol", registry.PROTOCOLS)
def test_help_has_a_row_for_every_limit_with_its_default_and_unit__FC_01(protocol):
    options = registry.part(protocol, "service", "Options")()
    for width, between in ((100, "  "), (40, "\n    ")):
        page = options.getUsage(width)
        for limit in options["limits"].table.values():
            row = f"{amount(limit.default, limit.unit)}{between}{limit.reason.split()[0]}"
            assert re.search(rf"^  {limit.name} +{re.escape(row)}", page, re.MULTILINE)


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


def test_the_gateways_help_shows_a_file_as_it_is_written__FC_01(monkeypatch):
    for columns, width in (("10", 40), ("90", 90), ("1000", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        page = GatewayOptions().getUsage()
        assert page == GatewayOptions().getUsage(width) != GatewayOptions().getUsage(width + 1)
    page = GatewayOptions().getUsage(80)
    assert '\n    [lumberjack]\n    endpoint = ["tcp:5044"' in page
    assert page.index("[lumberjack]") < page.index("--config=")


def test_the_page_of_limits_is_as_the_tables_are__FC_01():
    assert limits_page.PAGE.read_text() == limits_page.page(), "run python -m tests.docs.limits"


def test_the_types_of_limits_are_those_of_the_tables() -> None:
    written = limits_page.TYPES.read_text()
    assert written == limits_page.types(), "run python -m tests.docs.limits"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (64 << 20, "bytes", "64 MiB"),
        (16 << 10, "bytes/s", "16 KiB/s"),
        (1 << 30, "bytes", "1 GiB"),
        (1000, "bytes", "1,000 bytes"),
        (0, "bytes", "0 bytes"),
        (10_000, "connections", "10,000 connections"),
        (0.5, "s", "0.5 s"),
        (1048576, "characters", "1,048,576 characters"),
    ],
)
def test_amounts_are_as_people_write_them(value, unit, text):
    assert amount(value, unit) == text
