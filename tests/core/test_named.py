"""``MODULE:NAME``, as operators write it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.core.named import closest, failure_text, load_named

MODULES = {
    "named_good": "class Servers:\n    main = 'found'\n",
    "named_bad": "raise ValueError('first\\nsecond')\n",
    "named_exit": "raise SystemExit\n",
    "named_needs": "import twisted_msgproto_is_not.there\n",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_name_is_found_in_the_working_directory_and_the_path_stays_as_it_was() -> None:
    before = list(sys.path)
    module, found = load_named("named_good:Servers.main")
    assert (module.__name__, found) == ("named_good", "found")
    assert sys.path == before


def test_the_working_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "named_good.py").write_text("class Servers:\n    main = 'another'\n")
    monkeypatch.syspath_prepend(str(other))
    assert load_named("named_good:Servers.main")[1] == "found"


def test_a_working_directory_which_is_on_the_path_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    load_named("named_good:Servers")
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "MODULE:NAME is expected"),
        ("named_good", "MODULE:NAME is expected"),
        (":Servers", "MODULE:NAME is expected"),
        ("named_good:", "MODULE:NAME is expected"),
        ("named_good:Servers.other.main", "the module named_good has no Servers.other.main"),
        ("named_none:x", "there is no such module: install its package"),
        ("named_none.inner:x", "there is no such module: install its package"),
        ("named_needs:x", "it needs twisted_msgproto_is_not, which is not installed"),
        ("named_bad:x", "importing it failed: ValueError: first"),
        ("named_exit:x", "importing it failed: SystemExit"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(name: str, text: str) -> None:
    before = list(sys.path)
    with pytest.raises(ConfigurationError) as refused:
        load_named(name)
    assert str(refused.value).startswith(text)
    assert "\n" not in str(refused.value)
    assert sys.path == before


def test_an_exception_in_one_line_and_the_closest_name() -> None:
    assert failure_text(ValueError(" a\nb")) == "ValueError: a"
    assert failure_text(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert closest("windows", ["idle", "window"]) == " (did you mean 'window'?)"
    assert closest("zzz", ["idle", "window"]) == ""
