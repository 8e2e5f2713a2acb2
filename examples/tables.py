"""Writes a table of flats: `python examples/tables.py FOLDER`.

FOLDER/flats.csv has numbers and a town, some cells empty; a price, and whether the flat was sold soon.
"""

import csv
import random
import sys
from pathlib import Path

ROWS = 2000
TOWNS = {"Arden": 1900.0, "Borley": 2600.0, "Camber": 3400.0, "Dunmore": 4300.0}
"""Price of a square metre by town."""


def main(folder: Path) -> None:
    """Write FOLDER/flats.csv."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "flats.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["area", "rooms", "floor", "age", "town", "asked", "price", "sold_soon"])
        for _ in range(ROWS):
            town = draw.choice(sorted(TOWNS))
            area, floor, age = draw.uniform(25, 140), draw.randrange(12), draw.uniform(0, 90)
            worth = area * TOWNS[town] * (1.1 - 0.004 * age) * (1 + 0.01 * floor)
            asked = worth * draw.gauss(1.0, 0.12)
            rooms = max(1, round(area / 28 + draw.gauss(0, 0.5)))
            row = [round(area, 1), rooms, floor, round(age, 1), town, round(asked)]
            # One cell in twenty is empty, as in life.
            row = ["" if draw.random() < 0.05 else cell for cell in row]
            writer.writerow([*row, round(worth * draw.gauss(1.0, 0.05)), "yes" if asked < worth else "no"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
