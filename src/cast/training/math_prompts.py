"""Grade-school mathematics prompts, combined from story templates, names, things and numbers."""

import random

from cast.training.prompt_parts import parts

_PARTS = parts("math")


def math_prompt(rng: random.Random) -> str:
    """One word problem: a story template filled with names, things and numbers, all drawn by `rng`.

    In a template {a} and {b} are names, {t} and {u} things, {p} a place, {i} to {l} small numbers, {m} to {o}
    larger ones, {c} a percentage, {h} an hour and {seq} the start of a sequence.
    """
    a, b = rng.sample(_PARTS["names"], 2)
    t, u = rng.sample(_PARTS["things"], 2)
    small = {key: rng.randint(2, 15) for key in "ijkl"}
    large = {key: rng.randint(16, 240) for key in "mno"}
    step = rng.randint(2, 9)
    sequence = ", ".join(str(small["i"] + step * n) for n in range(1, 4))
    story = rng.choice(_PARTS["stories"])
    filled = story.format(
        a=a,
        b=b,
        t=t,
        u=u,
        p=rng.choice(_PARTS["places"]),
        c=rng.choice([5, 10, 15, 20, 25, 30, 40, 50, 75]),
        h=rng.randint(6, 11),
        seq=sequence,
        **small,
        **large,
    )
    return filled + rng.choice(_PARTS["endings"])
