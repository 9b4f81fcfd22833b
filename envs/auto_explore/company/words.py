"""Words the company draws from: what its files are named after, and who works there.

None of them stands in an aspect, a folder's name or the sentences of ``markdown`` and ``code``.
"""

from __future__ import annotations


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
