"""Vocabulary of the company, which is constant, and the plan of its folders for some size and seed.

It holds departments, their topics with three aspects each, and names. No content word occurs in the aspects of two
subjects, so an aspect's words identify the folder; and no name occurs in an aspect, a folder's name or a sentence.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import MappingProxyType

from reflectrl.core import InvalidInput, nearest
from reflectrl.core.seeds import derive_seed

MARKDOWN, TABLE = "markdown", "table"
PYTHON, JAVASCRIPT, GO, JAVA, SQL = "python", "javascript", "go", "java", "sql"


@dataclass(frozen=True)
class Subject:
    """The topic of one folder."""

    name: str
    """The folder's name, one word."""
    kind: str
    """Kind of the files: ``MARKDOWN``, ``TABLE`` or a programming language."""
    aspects: tuple[str, str, str]
    """Noun phrases, or for code what a function does; every file of the folder covers all three."""


@dataclass(frozen=True)
class Department:
    """A folder of the root, with files of its own and a folder for each topic."""

    own: Subject
    topics: tuple[Subject, ...]
    """Topics of the department, of which the small company has only the first two."""


DEPARTMENTS = (
    Department(
        Subject("people", MARKDOWN, ("job titles", "staff referrals", "exit interviews")),
        (
            Subject("leave", MARKDOWN, ("holiday allowance", "sick notes", "parental breaks")),
            Subject("pay", TABLE, ("hourly wage", "overtime bonus", "pension share")),
            Subject("hiring", MARKDOWN, ("candidate screening", "probation period", "relocation help")),
            Subject("welfare", MARKDOWN, ("dental cover", "gym membership", "bereavement support")),
        ),
    ),
    Department(
        Subject("finance", TABLE, ("net profit", "gross margin", "cash balance")),
        (
            Subject("tax", MARKDOWN, ("vat rebates", "import duties", "fiscal deadlines")),
            Subject("budget", TABLE, ("planned spending", "reserve fund", "forecast gap")),
            Subject("invoices", TABLE, ("unpaid bills", "late fees", "disputed charges")),
            Subject("audit", MARKDOWN, ("fraud alerts", "approval chains", "asset tags")),
        ),
    ),
    Department(
        Subject("roastery", MARKDOWN, ("roast levels", "cooling trays", "chaff disposal")),
        (
            Subject("machines", MARKDOWN, ("drum scrubbing", "burner repairs", "spare parts")),
            Subject("blending", TABLE, ("bean ratio", "acidity score", "moisture content")),
            Subject("storage", TABLE, ("silo weight", "sack tally", "shelf age")),
            Subject("safety", MARKDOWN, ("fire drills", "ear plugs", "dust masks")),
        ),
    ),
    Department(
        Subject("shops", MARKDOWN, ("window displays", "lost property", "queue barriers")),
        (
            Subject("counter", MARKDOWN, ("milk choices", "tip jars", "cup sizes")),
            Subject("takings", TABLE, ("daily visitors", "card sales", "pastry income")),
            Subject("opening", MARKDOWN, ("door keys", "alarm codes", "shutter checklist")),
            Subject("loyalty", MARKDOWN, ("stamp booklets", "birthday treats", "voucher expiry")),
        ),
    ),
    Department(
        Subject("software", PYTHON, ("retry the connection", "parse the timestamp", "rotate the logs")),
        (
            Subject("payments", JAVA, ("round the refund", "cancel the order", "convert the currency")),
            Subject("website", JAVASCRIPT, ("sort the menu", "validate the form", "resize the banner")),
            Subject("reports", SQL, ("rank the regions", "merge the duplicates", "pivot the quarters")),
            Subject("identity", GO, ("hash the password", "expire the session", "revoke the token")),
        ),
    ),
    Department(
        Subject("supply", TABLE, ("transit stock", "reorder quantity", "vendor rating")),
        (
            Subject("farms", MARKDOWN, ("harvest seasons", "fair premiums", "irrigation grants")),
            Subject("freight", GO, ("estimate the mileage", "split the cargo", "assign the truck")),
            Subject("customs", MARKDOWN, ("border papers", "pesticide tests", "origin seals")),
            Subject("depots", TABLE, ("pallet capacity", "forklift usage", "humidity reading")),
        ),
    ),
    Department(
        Subject("marketing", MARKDOWN, ("brand colours", "press releases", "street posters")),
        (
            Subject("surveys", TABLE, ("customer satisfaction", "taste preference", "response rate")),
            Subject(
                "newsletters", JAVASCRIPT, ("shorten the headline", "schedule the campaign", "greet the subscriber")
            ),
            Subject("sponsors", MARKDOWN, ("festival tents", "jersey logos", "athlete deals")),
            Subject("adverts", TABLE, ("billboard cost", "video views", "podcast reach")),
        ),
    ),
    Department(
        Subject("legal", MARKDOWN, ("court cases", "insurance claims", "trade licences")),
        (
            Subject("contracts", MARKDOWN, ("notice clauses", "penalty terms", "renewal dates")),
            Subject("privacy", MARKDOWN, ("camera footage", "data deletion", "cookie consent")),
            Subject("patents", MARKDOWN, ("invention filings", "royalty payouts", "prototype secrecy")),
            Subject("disputes", MARKDOWN, ("mediation panels", "witness statements", "settlement offers")),
        ),
    ),
    Department(
        Subject("facilities", MARKDOWN, ("office plants", "meeting rooms", "parking permits")),
        (
            Subject("energy", TABLE, ("gas consumption", "solar output", "heating demand")),
            Subject("sensors", PYTHON, ("calibrate the thermometer", "detect the leak", "dim the lights")),
            Subject("hygiene", MARKDOWN, ("glass recycling", "carpet shampoo", "towel laundry")),
            Subject("elevators", TABLE, ("cabin load", "ride distance", "outage duration")),
        ),
    ),
    Department(
        Subject("training", MARKDOWN, ("mentor pairs", "library books", "grammar lessons")),
        (
            Subject("courses", MARKDOWN, ("barista basics", "classroom laptops", "attendance lists")),
            Subject("exams", SQL, ("grade the essay", "shuffle the quiz", "average the marks")),
            Subject("workshops", MARKDOWN, ("tasting spoons", "grinder settings", "foam contests")),
            Subject("simulators", JAVASCRIPT, ("replay the scenario", "pause the exercise", "highlight the mistake")),
        ),
    ),
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CITIES = _words("""
    lisbon porto madrid vienna oslo dublin prague warsaw athens zurich berlin cairo
    amsterdam ankara antwerp barcelona basel belgrade bergen bilbao bologna bordeaux bremen bristol
    brussels bucharest budapest cologne copenhagen cork dresden dubai edinburgh geneva genoa glasgow
    hamburg hanover helsinki istanbul krakow leipzig liverpool ljubljana london lyon malaga malmo
    marseille milan munich naples nicosia palermo paris riga rome seville stockholm tallinn
""")
DRINKS = _words("""
    mocha latte espresso cortado lungo ristretto macchiato cappuccino americano affogato matcha chai
    antigua arabica assam bicerin bombon bourbon breve catuai caturra ceylon cubano darjeeling
    doppio einspanner excelsa frappe freddo galao genmaicha gesha harrar hojicha huila kona
    lapsang liberica mandheling maragogype marocchino mazagran melange monsoon narino oolong pacamara peaberry
    robusta romano rooibos santos sencha sidamo supremo tarrazu typica yirgacheffe yuzu zorro
""")
SERVICES = _words("""
    basket beacon catalog checkout courier gateway locker planner profile scanner ticket wallet
    archive bridge broker buffer cabinet calendar cashier compass console cursor digest doorbell
    editor feeder ferry finder forge funnel garden harbor inbox jukebox kettle ladder
    lantern mailer mapper mirror notifier oracle outbox parcel pilot portal printer radar
    relay router scheduler sentry shuttle signal spool tracker turbine uplink vault watcher
""")
GROUPS = ("apprentices", "contractors", "managers", "volunteers")
"""Sub-topics of policies."""
COASTS = ("east", "north", "south", "west")
"""Sub-topics of tables."""
SCREENS = ("desktops", "kiosks", "phones", "tablets")
"""Sub-topics of code."""
COLLEAGUES = _words("""
    Ana Boris Carla David Elena Felix Greta Hugo Irene Jonas Karin Luca Marta Nils Olga Pavel Quentin Rosa Stefan
    Tessa Ulrich Vera Wanda Xavier Yara Zoltan
""")


@dataclass(frozen=True)
class Size:
    """Size of a company."""

    topics: int
    """Number of folders of a department."""
    groups: int
    """Number of folders of a topic."""
    files: int
    pool: int
    """Number of entities that a folder's files are drawn from."""
    sentences: tuple[int, int]
    """Fewest and most sentences below a heading."""
    rows: tuple[int, int]
    """Fewest and most rows of a table."""
    steps: tuple[int, int]
    """Fewest and most steps of a function."""


SIZES = MappingProxyType(
    {
        "nano": Size(topics=2, groups=0, files=8, pool=8, sentences=(2, 3), rows=(12, 12), steps=(1, 3)),
        "full": Size(topics=4, groups=4, files=16, pool=60, sentences=(60, 80), rows=(550, 650), steps=(90, 130)),
    }
)


@dataclass(frozen=True)
class Folder:
    """A folder and its files; folders inside it are separate entries of the plan."""

    path: tuple[str, ...]
    """Names of the folders from the root."""
    subject: Subject
    entities: tuple[str, ...]
    """Entities of the folder, one file each, sorted."""
    group: str = ""
    """Word of the sub-topic, to which every aspect in the folder is narrowed."""


def size_named(name: str) -> Size:
    """Return the size called ``name``.

    Raises:
        InvalidInput: there is none.
    """
    if name not in SIZES:
        raise InvalidInput(f"company size {name!r} is unknown; {nearest(str(name), SIZES)}")
    return SIZES[name]


def plan_company(size: str = "nano", seed: int = 0) -> tuple[Folder, ...]:
    """Return every folder that holds files, parents first.

    The seed draws a folder's entities from its pool. The pools of the small company are no larger than its folders, so
    there all folders of a kind hold the same entities with every seed.

    A topic shares no entity with its sub-topics: "sick notes in oslo" and "sick notes for managers in oslo" never both
    exist, because the words of the second answer the first as well.
    """
    scale = size_named(size)
    folders = []
    for department in DEPARTMENTS:
        folders += _folders((), department.own, scale, 0, seed)
        for topic in department.topics[: scale.topics]:
            folders += _folders((department.own.name,), topic, scale, scale.groups, seed)
    return tuple(folders)


def _folders(above: tuple[str, ...], subject: Subject, scale: Size, groups: int, seed: int) -> list[Folder]:
    path = (*above, subject.name)
    rng = random.Random(derive_seed("company", seed, "plan", *path))
    entities, words = _pools(subject.kind)
    drawn = rng.sample(entities[: scale.pool], scale.pool)
    own, others = drawn[: scale.files], drawn[scale.files :]
    below = (
        Folder((*path, word), subject, tuple(sorted(rng.sample(others, scale.files))), word) for word in words[:groups]
    )
    return [Folder(path, subject, tuple(sorted(own))), *below]


def _pools(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words that name the files and sub-topics of a kind."""
    return {MARKDOWN: (CITIES, GROUPS), TABLE: (DRINKS, COASTS)}.get(kind, (SERVICES, SCREENS))
