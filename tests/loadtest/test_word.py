"""What a server would not take for one word is refused by the client and by the commands, by one rule."""

from __future__ import annotations

import argparse

import pytest

from gnatswarm.loadtest import talk
from gnatswarm.loadtest.natswire import Client
from gnatswarm.loadtest.word import BLANKS, has_blanks


@pytest.mark.parametrize("blank", [*BLANKS, "\udcff"])
def test_a_blank_is_refused_wherever_a_word_is_sent(blank: str) -> None:
    word = f"a{blank}b"
    assert has_blanks(word) and not has_blanks("a.b")
    with pytest.raises(ValueError, match="not a subject"):
        Client("nats://127.0.0.1:1").publish(word)
    with pytest.raises(ValueError, match="not a subject"):
        talk._run("pub", argparse.Namespace(subject=word))
    with pytest.raises(ValueError, match="not a name for --queue"):
        talk._run("sub", argparse.Namespace(subjects=["a"], queue=word))


def test_the_rule_is_changed_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnatswarm.loadtest.word.BLANKS", "x")
    with pytest.raises(ValueError, match="not a subject"):
        Client("nats://127.0.0.1:1").publish("axb")
    with pytest.raises(ValueError, match="not a subject"):
        talk._run("pub", argparse.Namespace(subject="axb"))
