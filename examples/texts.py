"""Write short messages of three kinds and their table: `python examples/texts.py raw/messages [--texts 600]`.

FOLDER/messages.csv has a column `text` and a column `label`: cooking, sports or weather. A message says a few words of
its kind among words that are everybody's.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

KINDS = {
    "cooking": "bake boil butter dough flour garlic grill onion oven pan pepper recipe salt sauce simmer soup stir",
    "sports": "ball coach defeat field goal jersey keeper league match player race referee score sprint team win",
    "weather": "breeze cloud cold drizzle fog forecast frost gust hail lightning rain snow storm sunny thunder wind",
}
EVERYBODYS = (
    "a about after again all also and any are as at be been before but by can could did do down for from had has "
    "he her here him how I if in into is it just last like little long many me more much my never new next no not "
    "now of on one or our out over quite she so some still than that the their them then there they this to today "
    "two under up very was we well were what when where which while who will with would yesterday you your"
)


def write(random: np.random.Generator, kind: str) -> str:
    """Return a message of 4 to 24 words, about a third of them of its kind."""
    own, others = KINDS[kind].split(), EVERYBODYS.split()
    words = [str(random.choice(own if random.random() < 0.35 else others)) for _ in range(random.integers(4, 25))]
    words[int(random.integers(len(words)))] = str(random.choice(own))
    return f"{' '.join(words).capitalize()}{random.choice(list('.!?'))}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write short messages of three kinds and their table.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=600)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    random, kinds = np.random.default_rng(0), list(KINDS)
    with (options.folder / "messages.csv").open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "label"])
        for number in range(options.texts):
            kind = kinds[number % len(kinds)]
            table.writerow([write(random, kind), kind])
