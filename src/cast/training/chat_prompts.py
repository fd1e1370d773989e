"""Open questions and writing requests, combined from forms and subjects."""

import random

from cast.training.prompt_parts import parts

_PARTS = parts("chat")
# Slot of a form -> the list it is filled from.
_SLOTS = {
    "concept": "concepts",
    "activity": "activities",
    "pair": "pairs",
    "character": "characters",
    "event": "events",
    "audience": "audiences",
    "person": "people",
    "matter": "matters",
    "place": "places",
    "job": "jobs",
    "food": "foods",
}


def chat_prompt(rng: random.Random) -> str:
    """One open question or writing request."""
    words = ", ".join(rng.choice([_PARTS[k] for k in ("foods", "jobs", "places")])[n] for n in rng.sample(range(11), 2))
    form = rng.choice(_PARTS["forms"])
    drawn = {slot: rng.choice(_PARTS[source]) for slot, source in _SLOTS.items()}
    number, style = rng.randint(3, 20), rng.choice(_PARTS["styles"])
    words += ", " + rng.choice(_PARTS["concepts"])
    filled = form.format(number=number, style=style, words=words, **drawn).strip()
    return filled if filled.endswith((".", "?")) else filled + "."
