"""What pyproject.toml cannot declare: the compiled part, left out where it cannot be built."""

import sysconfig

from setuptools import Extension, setup

STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Free-threaded Pythons have none, and refuse to make a wheel which is said to keep to it."""

setup(
    ext_modules=[
        Extension(
            "twisted_msgproto.lumberjack._scan",
            ["twisted_msgproto/lumberjack/_scan.c"],
            py_limited_api=STABLE_ABI,
            # Python code does the same work, more slowly, where there is no compiler.
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
)
