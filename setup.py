"""What pyproject.toml cannot declare: the compiled parts, left out where they cannot be built, and
README.md as package indexes show it.

With ``MSGPROTO_PURE`` in the environment they are not tried, and the wheel fits every platform.
"""

import os
import re
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Free-threaded Pythons have none, and refuse to make a wheel which is said to keep to it."""

PURE = bool(os.environ.get("MSGPROTO_PURE"))

COMPILED = ("twisted_msgproto.core._packed", "twisted_msgproto.lumberjack._scan")

EXTENSIONS = [
    Extension(
        name,
        [f"{name.replace('.', '/')}.c"],
        py_limited_api=STABLE_ABI,
        # Python code does the same work, more slowly, where there is no compiler.
        optional=True,
    )
    for name in COMPILED
]


def description() -> str:
    """Return README.md without pictures and links to files: an index does not have them."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"<picture>.*?</picture>\n*|!\[[^]]*\]\([^)]*\)\n*", "", text, flags=re.DOTALL)
    return re.sub(r"\[([^]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[] if PURE else EXTENSIONS,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI and not PURE else {},
)
