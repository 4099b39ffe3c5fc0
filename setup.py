"""What pyproject.toml cannot declare: the compiled parts, left out where they cannot be built.

With ``MSGPROTO_PURE`` in the environment they are not tried, and the wheel fits every platform.
"""

import os
import sysconfig

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

setup(
    ext_modules=[] if PURE else EXTENSIONS,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI and not PURE else {},
)
