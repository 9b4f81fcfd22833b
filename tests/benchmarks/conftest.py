from __future__ import annotations

from pathlib import Path

import pytest

from reflectrl.envs.auto_explore.dataset import Dataset, Question, write_dataset

SHOP = {
    "README.md": "# The shop\n\nWelcome to everyone.",
    "people/leave/athens.md": "# Leave in Athens\n\nSick notes go to Wanda.",
    "people/leave/lisbon.md": "# Leave in Lisbon\n\nHolidays are sent to Otto.",
    "people/pay.md": "# Wages\n\nWages are paid monthly.",
    "stock/green beans.md": "# Beans\n\nGreen beans are roasted on fridays."
    + " Nothing else." * 400
    + " Wanda's kettle.",
}
SHELF = {f"f{number}.md": f"This is book number{number}." for number in range(1, 6)}
QUESTIONS = {
    "train": (("shop", "Who welcomes everyone?", "README.md"),),
    "validation": (
        ("shop", "When are beans roasted?", "stock/green beans.md"),
        ("shop", "When are wages paid?", "people/pay.md"),
    ),
    "test": (
        ("shop", "Where do sick notes go?", "people/leave/athens.md"),
        ("shelf", "Which book is number4?", "f4.md"),
    ),
}


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five questions about two small repositories."""
    place = tmp_path_factory.mktemp("repositories")
    for name, files in (("shop", SHOP), ("shelf", SHELF)):
        for path, text in files.items():
            (place / name / path).parent.mkdir(parents=True, exist_ok=True)
            (place / name / path).write_text(text)
    asked = {
        split: tuple(Question(name, text, "so", file, 1) for name, text, file in rows)
        for split, rows in QUESTIONS.items()
    }
    write_dataset(place / "dataset", Dataset(asked, {name: place / name for name in ("shop", "shelf")}))
    return place / "dataset"
