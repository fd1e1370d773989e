"""Python function prompts: signatures with docstrings and worked examples, and plain requests.

The examples in the docstrings are computed, not written: every condition, transformation and summary below
carries the function it describes.
"""

import random
from collections.abc import Callable

from cast.training.prompt_parts import parts

_PARTS = parts("code")

# Words for the docstring, a piece of the function's name, and what it computes.
Operation = tuple[str, str, Callable]

CONDITIONS: list[Operation] = [
    ("even", "even", lambda n: n % 2 == 0),
    ("odd", "odd", lambda n: n % 2 == 1),
    ("positive", "positive", lambda n: n > 0),
    ("negative", "negative", lambda n: n < 0),
    ("two-digit", "two_digit", lambda n: 10 <= abs(n) <= 99),
    ("non-zero", "nonzero", lambda n: n != 0),
    *[(f"divisible by {k}", f"multiples_of_{k}", lambda n, k=k: n % k == 0) for k in (3, 4, 5, 7)],
    *[(f"greater than {k}", f"above_{k}", lambda n, k=k: n > k) for k in (5, 10, 20)],
    *[(f"smaller than {k}", f"below_{k}", lambda n, k=k: n < k) for k in (4, 12, 25)],
    ("prime", "prime", lambda n: n > 1 and all(n % d for d in range(2, n))),
    ("square", "square", lambda n: n >= 0 and int(n**0.5) ** 2 == n),
]
MAPS: list[Operation] = [
    ("", "", lambda n: n),
    ("doubled", "doubled", lambda n: 2 * n),
    ("squared", "squared", lambda n: n * n),
    ("negated", "negated", lambda n: -n),
    ("increased by one", "plus_one", lambda n: n + 1),
    ("cubed", "cubed", lambda n: n**3),
    ("halved, rounding down", "halved", lambda n: n // 2),
    ("replaced by the sum of their digits", "digit_sums", lambda n: sum(map(int, str(abs(n))))),
]
SUMMARIES: list[Operation] = [
    ("the sum of", "sum", sum),
    ("how many there are of", "count", len),
    ("the largest of", "largest", lambda ns: max(ns, default=None)),
    ("the smallest of", "smallest", lambda ns: min(ns, default=None)),
    ("a list of", "list", list),
    ("a sorted list of", "sorted", sorted),
    ("a list, in reverse order, of", "reversed", lambda ns: list(ns)[::-1]),
    ("a list without repetitions of", "unique", lambda ns: list(dict.fromkeys(ns))),
    ("the first of", "first", lambda ns: ns[0] if ns else None),
    ("the average of", "average", lambda ns: sum(ns) / len(ns) if ns else 0.0),
]
WORD_CONDITIONS: list[Operation] = [
    ("longer than three letters", "long", lambda w: len(w) > 3),
    ("that start with a vowel", "vowel_start", lambda w: w[0] in "aeiou"),
    ("that end with the letter 's'", "ending_s", lambda w: w.endswith("s")),
    ("that contain the letter 'a'", "with_a", lambda w: "a" in w),
    ("that are palindromes", "palindromic", lambda w: w == w[::-1]),
    ("with an even number of letters", "even_length", lambda w: len(w) % 2 == 0),
    ("without the letter 'e'", "without_e", lambda w: "e" not in w),
    ("with a repeated letter", "with_repeats", lambda w: len(set(w)) < len(w)),
]
WORD_MAPS: list[Operation] = [
    ("", "", lambda w: w),
    ("in upper case", "upper", str.upper),
    ("reversed", "backwards", lambda w: w[::-1]),
    ("replaced by their lengths", "lengths", len),
    ("with every vowel removed", "no_vowels", lambda w: "".join(c for c in w if c not in "aeiou")),
    ("with the first letter capitalised", "capitalised", str.capitalize),
]


def _number_function(rng: random.Random) -> str:
    condition, condition_name, keep = rng.choice(CONDITIONS)
    change, change_name, transform = rng.choice(MAPS)
    summary, summary_name, summarise = rng.choice(SUMMARIES)
    argument = rng.choice(["numbers", "values", "nums", "lst", "items", "xs"])
    name = "_".join(
        filter(None, [rng.choice(["get", "find", "compute", "", ""]), summary_name, condition_name, change_name])
    )
    after = f", {change}" if change else ""
    subject = f"numbers that are {condition}" if " " in condition else f"{condition} numbers"
    lines = [
        rng.choice(
            [
                f"Return {summary} the {subject} in {argument}{after}.",
                f"Given a list of integers {argument}, return {summary} the {subject} in it{after}.",
                f"{argument} is a list of integers. The function returns {summary} all its {subject}{after}.",
            ]
        )
    ]
    hint = rng.choice(["List[int]", "list[int]", "list"])
    examples = [[rng.randint(-9, 40) for _ in range(rng.randint(3, 6))] for _ in range(rng.randint(1, 3))]
    return _function(
        rng,
        name,
        f"{argument}: {hint}",
        lines,
        [(repr(e), summarise([transform(n) for n in e if keep(n)])) for e in examples],
    )


def _word_function(rng: random.Random) -> str:
    condition, condition_name, keep = rng.choice(WORD_CONDITIONS)
    change, change_name, transform = rng.choice(WORD_MAPS)
    argument = rng.choice(["words", "strings", "text", "names", "tokens"])
    name = "_".join(filter(None, [rng.choice(["select", "pick", "find", "get"]), condition_name, change_name]))
    after = f", {change}" if change else ""
    examples = [rng.sample(_PARTS["words"], rng.randint(3, 5)) for _ in range(rng.randint(1, 2))]
    if argument == "text":
        line = f"Return the words of the text {condition}{after}, as a list. "
        line += "Words are separated by single spaces."
        return _function(
            rng,
            name,
            "text: str",
            [line],
            [(repr(" ".join(e)), [transform(w) for w in e if keep(w)]) for e in examples],
        )
    line = f"From a list of lower-case words, return those {condition}{after}. The order stays the same."
    return _function(
        rng,
        name,
        f"{argument}: {rng.choice(['List[str]', 'list[str]'])}",
        [line],
        [(repr(e), [transform(w) for w in e if keep(w)]) for e in examples],
    )


def _function(
    rng: random.Random, name: str, signature: str, lines: list[str], examples: list[tuple[str, object]]
) -> str:
    header = "from typing import List\n\n\n" if "List[" in signature else ""
    quote = rng.choice(['"""', "'''"])
    style = rng.choice(["doctest", "arrow", "for example"])
    shown = []
    for argument, result in examples:
        if style == "doctest":
            shown += [f"    >>> {name}({argument})", f"    {result!r}"]
        elif style == "arrow":
            shown.append(
                f"    {name}({argument}) ➞ {result!r}"
                if rng.random() < 0.3
                else f"    {name}({argument}) == {result!r}"
            )
        else:
            shown.append(f"    For example, {name}({argument}) returns {result!r}.")
    body = "\n".join([f"    {quote} {lines[0]}", *shown, f"    {quote}"])
    return rng.choice(_PARTS["wrappers"]).format(code=f"{header}def {name}({signature}):\n{body}\n")


def code_prompt(rng: random.Random) -> str:
    """One programming prompt: a function to complete, a request in words, or a small program."""
    kind = rng.random()
    if kind < 0.44:
        return _number_function(rng)
    if kind < 0.7:
        return _word_function(rng)
    if kind < 0.92:
        subject = rng.choice(list(_PARTS["subjects"]))
        return rng.choice(_PARTS["requests"]).format(x=subject, y=rng.choice(_PARTS["subjects"][subject]))
    return rng.choice(_PARTS["task_forms"]).format(x=rng.choice(_PARTS["tasks"]))
