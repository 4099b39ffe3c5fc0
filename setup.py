"""What pyproject.toml cannot declare: the compiled part, which is left out where it cannot be built."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "twisted_msgproto.lumberjack._scan",
            ["twisted_msgproto/lumberjack/_scan.c"],
            py_limited_api=True,
            # Python code does the same work, more slowly, where there is no compiler.
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
