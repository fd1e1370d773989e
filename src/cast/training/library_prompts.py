"""Prompts from the documented functions of the Python standard library that is running.

Only prompts are made from them: a signature with its docstring to complete, or a question about the function.
"""

from __future__ import annotations

import ast
import functools
import random
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cast.training.prompt_parts import parts
from cast.training.prompts import TrainingPrompt

_CODE = parts("code")
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "ensurepip", "__pycache__"}
_DOCUMENTATION = range(30, 700)  # characters of a docstring that is worth a prompt


@dataclass(frozen=True)
class LibraryFunction:
    """A function of the standard library: dotted name of its module, name, signature and docstring."""

    module: str
    name: str
    signature: str
    documentation: str


@functools.cache
def library_functions() -> tuple[LibraryFunction, ...]:
    """Every documented function and method of the standard library, ordered by file and line, each
    docstring once.
    """
    root, found, seen = Path(sysconfig.get_paths()["stdlib"]), [], set()
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if _SKIPPED.isdisjoint(inside.parts):
            for function in _functions(path, ".".join(inside.with_suffix("").parts)):
                if function.documentation not in seen:
                    seen.add(function.documentation)
                    found.append(function)
    return tuple(found)


def _functions(path: Path, module: str) -> Iterator[LibraryFunction]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):  # templates and files in other encodings
            return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        text = ast.get_docstring(node)
        if not text or len(text) not in _DOCUMENTATION or node.name.startswith("__"):
            continue
        for arguments in (node.args.posonlyargs, node.args.args):
            if arguments and arguments[0].arg in ("self", "cls"):
                del arguments[0]
        returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield LibraryFunction(module, node.name, f"def {node.name}({ast.unparse(node.args)}){returned}:", text)


def library_prompts(count: int, seed: int) -> Iterator[TrainingPrompt]:
    """At most `count` prompts, each about another function: most ask to complete it, some ask about it."""
    rng = random.Random(f"{seed}/library")
    functions = rng.sample(library_functions(), len(library_functions())) if count else []
    for index, function in enumerate(functions[:count]):
        domain, text = library_prompt(function, rng)
        yield TrainingPrompt(f"library-{seed}-{index}", domain, text)


def library_prompt(function: LibraryFunction, rng: random.Random) -> tuple[str, str]:
    """(domain, text) of a prompt about one function: most ask to complete it, some ask about it."""
    if rng.random() < 0.8:
        documentation = textwrap.indent(function.documentation, "    ").lstrip()
        code = f'{function.signature}\n    """{documentation}\n    """\n'
        return "code", rng.choice(_CODE["wrappers"]).format(code=code)
    form = rng.choice(_CODE["library_questions"])
    name, first = f"{function.module}.{function.name}", function.documentation.splitlines()[0]
    return "chat", form.format(name=name, signature=function.signature[4:-1], first=first)
