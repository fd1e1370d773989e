"""How far a job is."""

import pytest

from jobs import status
from jobs.status import Status, duration, shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (89, "89 s"), (180, "3 min"), (5400, "1 h 30 min"), (7500, "2 h 05 min")],
)
def test_durations_as_people_say_them(seconds, words):
    assert duration(seconds) == words


def test_a_line_after_half_a_minute_and_at_the_end(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    with Status("decode a/math", 4) as reported:
        for done in range(1, 5):
            now[0] += 20
            reported.advance(done)
    assert capsys.readouterr().err.splitlines() == ["decode a/math 2/4, 40 s left", "decode a/math 4/4"]


def test_units_are_passed_on_while_they_are_counted(capsys):
    assert list(shown("replay a/math: draws", [5, 6, 7])) == [5, 6, 7]
    assert capsys.readouterr().err.splitlines() == ["replay a/math: draws 3/3"]


def test_what_earlier_sessions_did_is_no_pace_of_this_one(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    with Status("scores a/math", 1000, begun=400) as reported:
        now[0] += 40
        reported.advance(600)  # a unit of two hundred
        now[0] += 80
        reported.advance(1010)  # the last unit went past the total
    assert capsys.readouterr().err.splitlines() == ["scores a/math 600/1000, 80 s left", "scores a/math 1000/1000"]


def test_what_a_time_limit_leaves(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    with Status("decode a/math", 40, limit_s=100, begun=30) as reported:
        now[0] += 40
        reported.advance(31)
    assert capsys.readouterr().err.splitlines() == ["decode a/math 31/40, 60 s left"]
