"""Writes the training text: documents by number, the same on every machine.

Document ``i`` of a split depends on ``(split, seed, i)`` alone. The test split holds only what the
training split never shows: heroes (name and kind) with things, and sums, that are held out (see
``talk.held_out``).

    python generate.py --split train --documents 20     # to read some of it
"""

from __future__ import annotations

import argparse
import random

import talk

PLAIN_STORIES = 0.34  # of the documents; as stories are long, about half of the tokens
PLAIN_SUMS = 0.03
END = "<|endoftext|>"


def document(split: str, seed: int, index: int) -> str:
    """One document without its end marker: a story, a page of sums, or a conversation."""
    rng = random.Random(f"{split}/{seed}/{index}")
    test = split == "test"
    roll = rng.random()
    if roll < PLAIN_STORIES:
        return talk.any_story(rng, test).text()
    if roll < PLAIN_STORIES + PLAIN_SUMS:
        lines = []
        for _ in range(rng.randint(5, 25)):
            op, a, b, result = talk.draw_sum(rng, test)
            lines.append(f"{a} {'x' if op == '*' else op} {b} = {result}")
        return "\n".join(lines)
    system = rng.choice(talk.SYSTEM) if rng.random() < 0.2 else None
    return talk.chatml(talk.conversation(rng, test), system)


def main() -> None:
    """Prints documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", choices=["train", "test"], default="train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--documents", type=int, default=10)
    args = parser.parse_args()
    for index in range(args.documents):
        print(document(args.split, args.seed, index) + END)


if __name__ == "__main__":
    main()
