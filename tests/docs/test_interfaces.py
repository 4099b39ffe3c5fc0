"""The signatures on the page of interfaces are those of the code."""

from __future__ import annotations

import ast
import re

from tests.docs.embedded import PROJECT

PAGE = PROJECT / "docs" / "interfaces.md"
BLOCK = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def signatures(text: str) -> dict[str, str]:
    """The bases of each class, and the arguments, result and kind of each method."""
    found = {}
    for kind in ast.parse(text).body:
        if isinstance(kind, ast.ClassDef):
            found[kind.name] = ", ".join(map(ast.unparse, kind.bases))
            for method in kind.body:
                if isinstance(method, ast.FunctionDef):
                    words = [ast.unparse(one) for one in method.decorator_list]
                    returns = method.returns and ast.unparse(method.returns)
                    found[f"{kind.name}.{method.name}"] = (
                        f"{'property' if 'property' in words else 'def'}"
                        f" ({ast.unparse(method.args)}) -> {returns}"
                    )
    return found


def test_the_page_has_the_signatures_of_the_code_and_is_short() -> None:
    text = PAGE.read_text()
    blocks = BLOCK.findall(text)
    assert len(blocks) >= 10 and len(text.splitlines()) <= 250
    for file, block in blocks:
        code, shown = signatures((PROJECT / file).read_text()), signatures(block)
        assert len(shown) > 1
        assert shown == {name: code.get(name) for name in shown}, file
