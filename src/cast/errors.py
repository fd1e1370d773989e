"""The exception users meet, and what is refused in several places."""


class CastError(Exception):
    """A problem the user can act on, told in one line.

    The message says what is wrong and, after a semicolon, what would be right. Scripts print it as
    ``error: <message>`` and exit with code 2; it never needs a traceback to be understood.
    """


class HubUnavailable(CastError):
    """The hub does not serve a checkpoint here: it is gated, or the hub cannot be reached."""


NAN_LOGITS = "the drafter returned NaN logits; check its checkpoint and dtype"
"""What every tree builder says of scores it cannot rank."""

MOST_NODES = 2**14
"""Largest budget: the mask of a pack grows with its square, and 16,384 nodes take a gigabyte of it in fp32."""
