"""Write prompts of many kinds, to train draft models on, from what comes with Python itself.

Text and code are the standard library's (Python Software Foundation License): functions to explain,
document and test; paragraphs of the language reference to summarise, translate and ask about.
The rest is put together from the lists of training_words.toml: questions, stories, roles, sums.

    python scripts/training_prompts.py prompts.jsonl --count 1200

The same Python, seed and count give the same file.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sysconfig
import tomllib
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from pydoc_data.topics import topics

WORDS = tomllib.loads((Path(__file__).parent / "training_words.toml").read_text(encoding="utf-8"))

_SENTENCE = re.compile(r"[A-Z][^.!?:*`|]{40,220}[.!?](?=\s|$)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--count", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    seen: set[str] = set()
    with arguments.output.open("w", encoding="utf-8") as file:
        for category, text in islice(
            _prompts(random.Random(arguments.seed), seen), arguments.count
        ):
            row = {"category": category, "turns": [text]}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _prompts(rng: random.Random, seen: set[str]) -> Iterator[tuple[str, str]]:
    """The kinds in turn, no prompt twice; ends when a kind says nothing new a thousand times."""
    code, prose = _functions(), _paragraphs()
    sentences = [one for text in prose for one in _SENTENCE.findall(text)]
    kinds: dict[str, Callable[[], str]] = {
        "explain code": lambda: _asks_of_code(rng, rng.choice(code)),
        "translation": lambda: (
            f"Translate this sentence to {rng.choice(WORDS['languages'])}: {rng.choice(sentences)}"
        ),
        "summary": lambda: f"Summarize in a few sentences:\n\n{rng.choice(prose)}",
        "question": lambda: _question(rng),
        "text question": lambda: _text_question(rng, rng.choice(prose), rng.choice(sentences)),
        "writing": lambda: _writing(rng),
        "role": lambda: (
            f"Pretend that you are {rng.choice(WORDS['roles'])}, "
            f"and {rng.choice(WORDS['requests'])}."
        ),
        "advice": lambda: _advice(rng),
        "sum": lambda: _sum(rng),
        "extraction": lambda: _extraction(rng),
    }
    for category in cycle(kinds):
        for _ in range(1000):
            text = kinds[category]()
            if text not in seen:
                break
        else:
            return
        seen.add(text)
        yield category, text


def _functions() -> list[str]:
    """Functions of the standard library of a readable length, with their documentation."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = path.read_text(encoding="utf-8", errors="replace")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                text = ast.get_source_segment(source, node) or ""
                if 200 < len(text) < 1200 and not node.name.startswith("_"):
                    found.append(text)
    return sorted(set(found))


def _paragraphs() -> list[str]:
    found = []
    for name in sorted(topics):
        for text in re.split(r"\n\s*\n", topics[name]):
            flat = " ".join(text.split())
            if 250 < len(flat) < 1100 and _SENTENCE.match(flat):
                found.append(flat)
    return sorted(set(found))


def _asks_of_code(rng: random.Random, source: str) -> str:
    ask = rng.choice(
        [
            "Explain what this function does",
            "Write tests for this function",
            "Add type hints to this function, and print all of it",
            "Rewrite this function so that it is easier to read",
            "What can go wrong in this function?",
            "Write a shorter version of this function",
        ]
    )
    return f"{ask}:\n```python\n{source}\n```"


def _question(rng: random.Random) -> str:
    form = rng.choice(
        [
            "What is {concept}?",
            "Explain {concept} in simple terms.",
            "Give three facts about {concept}.",
            "Why does {concept} matter?",
            "What is the difference between {concept} and {other}?",
            "What is {place} known for?",
            "What is the capital of {place}, and what can one see there?",
            "How was {concept} discovered, or how did it come about?",
        ]
    )
    return form.format(
        concept=rng.choice(WORDS["concepts"]),
        other=rng.choice(WORDS["concepts"]),
        place=rng.choice(WORDS["places"]),
    )


def _text_question(rng: random.Random, text: str, sentence: str) -> str:
    ask = rng.choice(
        [
            "What is the main point of this text?",
            "Which terms does this text define, and how?",
            "Is the following stated in the text, and where? " + sentence,
            "Write three questions that this text answers, with their answers.",
        ]
    )
    return f"Answer from the text alone.\n\nText: {text}\n\nQuestion: {ask}"


def _writing(rng: random.Random) -> str:
    form = rng.choice(
        [
            "Write a short story about {a} and {b}.",
            "Write a poem about {a}.",
            "Write the first paragraph of a novel about {a}.",
            "Describe {a} to somebody who has never seen anything like it.",
            "Write a dialogue between {a} and {b}.",
            "Write a letter from {place} to a friend, which mentions {a}.",
            "Write a short review of a film about {a}.",
        ]
    )
    return form.format(
        a=rng.choice(WORDS["things"]),
        b=rng.choice(WORDS["things"]),
        place=rng.choice(WORDS["places"]),
    )


def _advice(rng: random.Random) -> str:
    form = rng.choice(
        [
            "How do I {task}?",
            "Give me five tips to {task}.",
            "I want to {task}, but I have little time. What should I do first?",
            "Make a plan of one week to {task}.",
            "What are the most common mistakes when people {task}?",
        ]
    )
    return form.format(task=rng.choice(WORDS["tasks"]))


def _sum(rng: random.Random) -> str:
    who, other = rng.sample(WORDS["names"], 2)
    what = rng.choice(WORDS["goods"])
    some, more, price = rng.randint(3, 40), rng.randint(2, 30), rng.randint(2, 9)
    form = rng.choice(
        [
            "{who} has {some} {what} and buys {more} more for ${price} each. How many {what} does "
            "{who} have now, and what did the new ones cost?",
            "{who} and {other} share {some} {what} and find {more} others. Each takes half. How "
            "many does each have, and is one left over?",
            "A shop sells {what} for ${price}. {who} buys {some}, {other} {more}. How much do they "
            "pay together?",
            "{who} reads {some} pages a day, {other} {more}. How many pages do both read in "
            "{price} days, and by how many do they differ?",
        ]
    )
    return form.format(who=who, other=other, what=what, some=some, more=more, price=price)


def _extraction(rng: random.Random) -> str:
    lines = [
        f"{rng.choice(WORDS['names'])} from {rng.choice(WORDS['places'])} ordered "
        f"{rng.randint(1, 60)} {rng.choice(WORDS['goods'])} on "
        f"{rng.randint(1, 28)}.{rng.randint(1, 12)}.2024."
        for _ in range(rng.randint(3, 6))
    ]
    ask = rng.choice(
        [
            "as JSON, an object a line, with the keys name, country, item, quantity and date",
            "as a Markdown table",
            "as CSV with a header",
            "as a list sorted by quantity, the largest first",
        ]
    )
    return f"Give the orders in this text {ask}.\n\n{' '.join(lines)}"


if __name__ == "__main__":
    main()
