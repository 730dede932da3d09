"""Are two pieces of code the same but for layout and comments?

Whether different code has the same effect can't be decided in general, so it is never called the same: only what a
reader of the language throws away (layout, comments, the kind of quotes) is cosmetic.
"""

from __future__ import annotations

import ast
import re
import warnings

from toki.divergence.layout import Code
from toki.divergence.layout import lines

_PYTHON = frozenset({"", "python", "py", "python3"})
_HASH_COMMENTS = frozenset({"", "python", "py", "python3", "sh", "bash", "shell", "ruby", "yaml", "yml", "toml", "r"})
_SLASH_COMMENTS = frozenset(
    {"", "js", "javascript", "ts", "typescript", "c", "cpp", "c++", "java", "go", "rust", "cs", "c#", "swift", "kotlin"}
)
_EITHER_QUOTES = frozenset({"python", "py", "python3", "js", "javascript", "ts", "typescript"})
_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(?P<slash>//[^\n]*|/\*.*?\*/)"""
    r"""|(?P<hash>\#[^\n]*)|(?P<dashes>--[^\n]*)|\w+|[^\w\s]""",
    re.S,
)


def same(one: Code, other: Code) -> bool:
    """Whether only layout, comments or quotes differ."""
    language = one.language or other.language
    if language in _PYTHON:
        trees = [_tree(code.text) for code in (one, other)]
        if all(tree is not None for tree in trees):
            return trees[0] == trees[1]
    if _tokens(one.text, language) != _tokens(other.text, language):
        return False
    braces = "{" in one.text or "sql" in language
    return braces or _steps(one.text) == _steps(other.text)


def _tree(code: str) -> str | None:
    """Python's own reading of `code`, without docstrings; None where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in the code
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if len(node.body) > 1 and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                del node.body[0]
    return ast.dump(tree)


def _tokens(code: str, language: str) -> list[str]:
    found = []
    for match in _TOKEN.finditer(code):
        kind = match.lastgroup
        if kind == "slash" and language in _SLASH_COMMENTS:
            continue
        if kind == "hash" and language in _HASH_COMMENTS and not match[0].startswith(("#include", "#!", "#define")):
            continue
        if kind == "dashes" and "sql" in language:
            continue
        token = match[0]
        if kind == "text" and language in _EITHER_QUOTES and token[0] == "'":
            token = '"' + token[1:-1].replace('"', '\\"') + '"'
        if kind in ("slash", "hash", "dashes"):
            found += re.findall(r"\w+|[^\w\s]", token)
        else:
            found.append(token)
    return found


def _steps(code: str) -> list[int]:
    """How many levels deep each line stands."""
    levels: list[int] = []
    found = []
    for indent, _ in lines(code):
        while levels and levels[-1] > indent:
            levels.pop()
        if not levels or levels[-1] < indent:
            levels.append(indent)
        found.append(len(levels))
    return found
