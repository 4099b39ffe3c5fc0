"""Pictures of the live page in a real browser: ``python -m tests.docs.screenshots`` renews docs/.

Each picture is a scene, what the page must say before it is taken, and its size.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs import scenes
from tests.tools.javascript import Page, start_browser
from tests.tools.processes import START_SECONDS, Launcher

DOCS = Path(__file__).parent.parent.parent / "docs"


class Picture(NamedTuple):
    """One picture: its file, its size in CSS pixels, light or dark, and what is done before."""

    name: str
    width: int = 1280
    dark: bool = False
    act: str = ""


class Scene(NamedTuple):
    """What is shown: a gateway, and what its page must say (a regular expression)."""

    made: Callable[[Launcher], AbstractContextManager[str]]
    wanted: str
    pictures: Sequence[Picture]


FILLING = """[data-state="lumberjack FILLING"]"""
FILTER = f"document.querySelector('{FILLING}').dispatchEvent(new Event('click'))"

SCENES = {
    "busy": Scene(
        scenes.busy,
        r"Safe and landing[^]*p99 [\d.]+ m?s[^]*srv.events: running"
        r"[^]*version\s+3\s[^]*connections=5[^]*orders",
        [
            Picture("status.png"),
            Picture("status-dark.png", dark=True),
            Picture("status-phone.png", width=390),
        ],
    ),
    "crowded": Scene(
        scenes.crowded,
        r"9,800\s+empty[^]*200 shown of 10,000",
        [Picture("status-sessions.png", act=FILTER)],
    ),
    "full": Scene(
        scenes.full,
        r"Look here[^]*Nothing can be acknowledged",
        [Picture("status-full.png")],
    ),
}

HIGH = "Math.ceil(document.querySelector('footer').getBoundingClientRect().bottom + scrollY)"
"""How high the page is at its present width."""

HIGH_MAX = 1650
"""A picture is not higher: a phone's page would be a long strip."""

WITHIN = "document.documentElement.scrollWidth <= innerWidth"


async def taken(page: Page, url: str, scene: Scene, directory: Path) -> list[str]:
    """Take the pictures of a scene; the page's text before each."""
    await page.open(url)
    texts = [await page.shown(scene.wanted)]
    for picture in scene.pictures:
        if picture.act:
            await page.value(picture.act)
            texts.append(await page.shown(r"that match"))
        path = directory / picture.name
        await page.look(path, width=picture.width, dark=picture.dark)
        high = min(HIGH_MAX, await page.value(HIGH))
        assert await page.value(WITHIN), f"{picture.name} scrolls sideways"
        await page.look(path, width=picture.width, height=high, dark=picture.dark, whole=False)
    return texts


def take(launch: Launcher, name: str, directory: Path) -> list[str]:
    """Show a scene in a browser and take its pictures into ``directory``; what the page said."""
    from websockets.asyncio.client import connect

    scene = SCENES[name]

    async def visit(url: str, debugging: str) -> list[str]:
        options: dict[str, Any] = {"compression": None, "max_size": None, "origin": None}
        async with connect(debugging, **options) as browser:
            return await taken(Page(browser), url, scene, directory)

    debugging = start_browser(launch)
    with scene.made(launch) as url:
        return asyncio.run(asyncio.wait_for(visit(url, debugging), START_SECONDS))


def main(names: Sequence[str]) -> None:
    for name in names or SCENES:
        with tempfile.TemporaryDirectory() as scratch:
            launch = Launcher(Path(scratch))
            try:
                take(launch, name, DOCS)
            finally:
                launch.end_all()
        print(f"{name}: {', '.join(picture.name for picture in SCENES[name].pictures)}")


if __name__ == "__main__":
    main(sys.argv[1:])
