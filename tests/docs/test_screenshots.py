"""The live page of real gateways in a real browser, as the documents show it (``FC-03``)."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from tests.docs import scenes, screenshots
from tests.tools.javascript import needs_browser
from tests.tools.processes import Launcher

pytest.importorskip("websockets")
Image = pytest.importorskip("PIL.Image")

COLOURS_LEAST = 30
"""A picture with text, lines and lamps has many; a blank page has one or two."""

pytestmark = [pytest.mark.slow, needs_browser, pytest.mark.xdist_group("browser")]


def looked_at(directory: Path, name: str) -> dict[str, float]:
    """The brightness of each picture of a scene, which must not be blank and have its size."""
    found = {}
    for picture in screenshots.SCENES[name].pictures:
        with Image.open(directory / picture.name) as image:
            assert image.width == picture.width
            assert image.height > 600
            colours = image.convert("RGB").getcolors(1 << 24)
            assert len(colours) > COLOURS_LEAST, picture.name
            pixels = image.width * image.height
            found[picture.name] = sum(n * sum(rgb) for n, rgb in colours) / 765 / pixels
    return found


def test_five_protocols_with_their_clients_in_light_in_dark_and_on_a_phone(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "SECONDS", 3.0)
    [text] = screenshots.take(launch, "busy", tmp_path)
    brightness = looked_at(tmp_path, "busy")
    assert brightness["status.png"] > 0.8 > 0.3 > brightness["status-dark.png"]
    for wanted in (
        r"lumberjack\s+[\d.]+ \w?i?B/s\s+[\d,.]+ messages/s\s+up to [\d,]+\s+ack\s+p50 [\d.–]+",
        r"/srv/events: running, 1 away",
        r"gateways\s+3\s+heard\s+\d+ s ago",
        r"grpc\+tls://edge-7:8815\s+away",
        r"lumberjack\s+version\s+3",  # faults of peers
        r"127\.0\.0\.1\s+lumberjack\s+version",  # and by address
        r"micromsg2\s+--limit connections=5\s+connections\s+\d",
        r"micromsg2\s+orders\s+[\d,]+",
    ):
        assert re.search(wanted, text), (wanted, text)


def test_ten_thousand_sessions_are_counted_and_those_of_a_state_are_found(
    launch: Launcher, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = scenes.CROWD + 500
    if hard < wanted:
        pytest.skip(f"ten thousand sessions need {wanted} open files: raise ulimit -Hn from {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        all_of_them, of_one_state = screenshots.take(launch, "crowded", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    looked_at(tmp_path, "crowded")
    assert re.search(r"9,800\s+empty", all_of_them)
    assert "lumberjack FILLING ×" in of_one_state
    assert "200 shown of 200 that match, 10,000 in all" in of_one_state
    rows = re.findall(r"lumberjack\s+(FILLING|EMPTY)\s+127", of_one_state)
    assert rows == ["FILLING"] * 200


def test_a_full_disk_stands_in_the_first_line(launch: Launcher, tmp_path: Path) -> None:
    [text] = screenshots.take(launch, "full", tmp_path)
    looked_at(tmp_path, "full")
    assert "Nothing can be acknowledged: no room on the disk of" in text
    assert re.search(r"not durable yet\s+[1-9]", text)


def test_every_picture_of_the_documents_is_one_that_is_taken() -> None:
    taken = {picture.name for scene in screenshots.SCENES.values() for picture in scene.pictures}
    there = {path.name for path in screenshots.DOCS.glob("status*.png")}
    assert there == taken, "run python -m tests.docs.screenshots"
