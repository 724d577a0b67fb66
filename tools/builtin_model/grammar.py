"""A small text grammar: alternatives, slots, and the repairs English needs.

A template is plain text with two kinds of holes:

* ``[a|b|c]`` is one of its alternatives, drawn at random. They nest, and one may be empty.
* ``{slot}`` or ``{slot.attribute}`` is a value of the environment. A value that is a list stands
  for any of its members, one not used before in this text if possible. A value that is itself a
  template is expanded in turn.

:func:`polish` then repairs what no single template can know: capitals at the start of a sentence
or a quotation, and "a" before a vowel.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Any

Node = str | tuple[str, ...] | list["Sequence"]
Sequence = list[Node]


@lru_cache(maxsize=None)
def parse(template: str) -> Sequence:
    """The template as a sequence of literals, slots (tuples) and choices (lists of sequences)."""
    sequence, end = _parse_sequence(template, 0, nested=False)
    if end != len(template):
        raise ValueError(f"unbalanced ']' at {end} in template: {template}")
    return sequence


def _parse_sequence(text: str, at: int, nested: bool) -> tuple[Sequence, int]:
    sequence: Sequence = []
    literal_start = at
    while at < len(text):
        char = text[at]
        if char == "]" or (char == "|" and nested):
            break
        if char not in "[{":
            at += 1
            continue
        if at > literal_start:
            sequence.append(text[literal_start:at])
        if char == "{":
            close = text.index("}", at)
            sequence.append(tuple(text[at + 1 : close].split(".")))
            at = close + 1
        else:
            choice: list[Sequence] = []
            while True:
                option, at = _parse_sequence(text, at + 1, nested=True)
                choice.append(option)
                if at >= len(text):
                    raise ValueError(f"'[' without ']' in template: {text}")
                if text[at] == "]":
                    break
            sequence.append(choice)
            at += 1
        literal_start = at
    if at > literal_start:
        sequence.append(text[literal_start:at])
    return sequence, at


class Writer:
    """Expands templates against one environment with one stream of random numbers."""

    def __init__(self, rng: random.Random, env: dict[str, Any]) -> None:
        self.rng = rng
        self.env = env
        self._used: set[str] = set()

    def expand(self, template: str) -> str:
        """The template's text, every hole filled."""
        if "[" not in template and "{" not in template:
            return template
        out: list[str] = []
        self._write(parse(template), out)
        return "".join(out)

    def _write(self, sequence: Sequence, out: list[str]) -> None:
        for node in sequence:
            if isinstance(node, str):
                out.append(node)
            elif isinstance(node, tuple):
                out.append(self._slot(node))
            else:
                self._write(node[int(self.rng.random() * len(node))], out)

    def _slot(self, path: tuple[str, ...]) -> str:
        value = self.env[path[0]]
        for attribute in path[1:]:
            value = getattr(value, attribute)
        if isinstance(value, list):
            value = self._fresh(value)
        return self.expand(str(value))

    def _fresh(self, options: list[str]) -> str:
        option = self.rng.choice(options)
        for _ in range(6):
            if option not in self._used:
                break
            option = self.rng.choice(options)
        self._used.add(option)
        return option


_SPACES = re.compile(r"  +")
_LOOSE_STOP = re.compile(r" ([.,!?])(?= |$)")
_SENTENCE_START = re.compile(r"(^|[.!?] |\n)([a-z])")
_QUOTE_START = re.compile(r'((?:^|\n|[.!?:]"? )")([a-z])')
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!one\b|uni|use|Euro|U )")


def polish(text: str) -> str:
    """Capitals where a sentence or a quotation starts, "an" before a vowel, single spaces."""
    text = _SPACES.sub(" ", text)
    text = _LOOSE_STOP.sub(r"\1", text)
    text = _SENTENCE_START.sub(lambda m: m[1] + m[2].upper(), text)
    text = _QUOTE_START.sub(lambda m: m[1] + m[2].upper(), text)
    return _ARTICLE.sub(r"\1n ", text)
