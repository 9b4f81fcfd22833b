from __future__ import annotations

from dataclasses import replace

import pytest

from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.shop.catalogue import KINDS, catalogue, score, type_match
from reflectrl.envs.shop.expert import goals

CHAIR = "adjustable_padded_office_chair"
"""A test task, and below what its best search shows."""
WANTED = "I am looking for an adjustable padded office chair with color white, and price at most 40 dollars."
BEST = "search adjustable padded office chair"
RESULTS = """\
Results for adjustable padded office chair, page 1 of 10:
1: Brindlow adjustable breathable office chair with armrest and wheel, $43
2: Dunmere adjustable foldable office chair with armrest and wheel, $54
3: Dunmere modern adjustable office chair with armrest and wheel, $57
4: Fennick modern adjustable office chair with armrest and wheel, $59
5: Elkhorn adjustable ergonomic office chair with armrest and wheel, $29"""
PAGE = """\
Elkhorn adjustable ergonomic office chair with armrest and wheel, $29.
color: white, red, green.
size: small, medium."""


@pytest.fixture
def env():
    return make_env("shop")


def played(env, task, choose):
    """Play an episode and return its last reward."""
    env.reset(seed=0, options={"task": task})
    while True:
        _, reward, terminated, truncated, info = env.step(choose(env))
        if terminated or truncated:
            assert info["success"] == (reward == 1)
            return reward


def seen(env, *actions):
    """The page of ``CHAIR`` after some actions, without the instruction."""
    env.reset(seed=0, options={"task": Task(CHAIR)})
    for action in actions:
        env.step(action)
    return env.observation.text


def test_it_keeps_the_promises_of_an_environment(env):
    check_env(env)
    with pytest.raises(InvalidInput, match="use env.tasks"):
        env.reset(options={"task": Task("deep_pan")})


def test_published_numbers_refer_to_these_products_and_tasks(env):
    assert len(catalogue()) == 1152
    assert catalogue()["p1151"].title == "Garrowby lightweight slim guitar case with latch and lining"
    assert {split: (len(env.tasks(split)), env.tasks(split)[0].id) for split in SPLITS} == {
        "train": (425, "lightweight_deep_frying_pan"),
        "validation": (106, "ergonomic_baby_bottle"),
        "test": (178, "expandable_lightweight_laptop_backpack"),
    }


def test_splits_share_kinds_and_no_wishes(env):
    asked = {split: [goals()[task.id] for task in env.tasks(split)] for split in SPLITS}
    combined = [(goal.kind, frozenset(goal.attributes)) for goals in asked.values() for goal in goals]
    assert len({*combined}) == len(combined)
    assert all({goal.kind for goal in goals} == {kind.name for kind in KINDS} for goals in asked.values())


def test_one_department_has_the_same_tasks_in_the_same_splits(env):
    home = make_env("shop:home")
    for split in SPLITS:
        assert home.tasks(split) == tuple(task for task in env.tasks(split) if task.group == "home") != ()
    with pytest.raises(InvalidInput, match="did you mean 'home'"):
        make_env("shop:hom")


def bought_with(product, goal):
    """The wanted options, as far as the product comes in them."""
    return {name: value for name, value in goal.options.items() if value in product.options.get(name, ())}


def test_a_search_leads_to_results_and_on_to_pages_of_products(env):
    assert seen(env) == "Search page."
    assert env.observation.task == WANTED
    assert env.observation.actions == (
        "search adjustable office chair",
        "search adjustable padded",
        BEST,
        "search chair",
        "search office chair",
        "search padded office chair",
        "search white adjustable",
        "search white office chair",
    )
    assert seen(env, BEST) == RESULTS
    results = ("open 1", "open 2", "open 3", "open 4", "open 5")
    assert env.observation.actions == (*results, "next page", "back to search")
    assert seen(env, BEST, "next page").startswith("Results for adjustable padded office chair, page 2 of 10:\n1: ")
    assert env.observation.actions == (*results, "next page", "previous page", "back to search")
    assert seen(env, BEST, "next page", "previous page") == RESULTS
    assert seen(env, BEST, "open 5", "back to results") == f"{RESULTS} (opened before)"
    assert seen(env, BEST, "open 5", "back to search") == "Search page."


def test_a_product_is_read_and_its_options_are_chosen_on_its_page(env):
    read = ("read the features", "read the description")
    leave = ("back to results", "back to search", "buy now")
    assert seen(env, BEST, "open 5") == f"{PAGE}\nChosen: nothing."
    assert env.observation.actions[-5:] == (*reversed(read), *leave)
    chosen = (BEST, "open 5", *read, "choose red", "choose white", "choose small")
    learned = f"{PAGE}\nElkhorn makes this breathable office chair with care.\n"
    assert seen(env, *chosen) == f"{learned}Features: adjustable, breathable, ergonomic, sturdy.\nChosen: white, small."
    assert env.observation.actions == ("choose red", "choose green", "choose medium", *leave)
    again = seen(env, *chosen, "back to results", "open 5")
    assert again == f"{learned}Features: adjustable, breathable, ergonomic, sturdy.\nChosen: nothing."


@pytest.mark.parametrize(
    ("pressed", "reward"),
    [
        (["next page", "open 4", "choose white"], 4 / 4),  # adjustable, padded, white, below the limit
        (["next page", "open 4", "choose white", "choose large"], 4 / 4),  # what was not asked for is free
        (["next page", "open 4"], 3 / 4),
        (["next page", "open 4", "choose red"], 3 / 4),
        (["open 5", "choose white"], 3 / 4),  # not padded
        (["open 1"], 1 / 4),  # dear as well
    ],
)
def test_a_purchase_pays_the_share_of_what_was_asked_for(env, pressed, reward):
    seen(env, BEST, *pressed)
    text, given, terminated, truncated, info = env.step("buy now")
    assert (given, terminated, truncated, info["success"]) == (reward, True, False, reward == 1)
    assert text.endswith("\nThank you for your order.")  # a rater reads it, so it does not tell the reward


def test_wrong_prices_and_kinds_cost_their_share():
    goal = goals()[CHAIR]
    wanted = catalogue()[goal.product]
    options = bought_with(wanted, goal)
    assert score(wanted, options, goal) == 1
    assert score(replace(wanted, price=goal.limit), options, goal) == 1
    assert score(replace(wanted, price=goal.limit + 1), options, goal) == 3 / 4
    by_name = {kind.name: kind for kind in KINDS}
    for kind, brand, match in (
        ("office chair", "", 1.0),
        ("camping chair", "", 0.5),  # one noun of five
        ("desk lamp", wanted.brand, 0.5),
        ("desk lamp", "", 0.0),
    ):
        assert score(replace(wanted, kind=by_name[kind], brand=brand), options, goal) == match
    nouns = replace(wanted.kind, parts=tuple(map(str, range(8))))
    many = replace(wanted, kind=nouns)
    assert type_match(replace(wanted, kind=by_name["camping chair"], brand=""), many) == 0.1  # one noun of eleven
    assert type_match(wanted, many) == 1.0  # three of eleven


def test_the_expert_buys_what_is_wanted(env):
    assert {played(env, task, lambda env: env.expert()) for task in env.tasks("test")} == {1.0}


def test_a_reflection_judges_and_says_what_the_pages_have_shown(env):
    later = (BEST, "open 5", "read the features", "back to results", "next page", "open 4")
    told = {
        (): "Wanted: adjustable padded office chair.",
        ("search chair",): "Mistake. This was not searched for all that is wanted.",
        (BEST,): "Good. Result 5 may fit.",
        (BEST, "next page"): "Mistake. Result 2 may fit.",
        (BEST, "open 1"): "Mistake. It does not fit: it costs too much.",
        (BEST, "open 5"): "Good. It may fit; not read yet: padded.",
        (BEST, "open 5", "choose white"): "Mistake. It may fit; not read yet: padded.",
        later[:3]: "Good. It does not fit: it is not padded.",
        later[:4]: "Good. No result here fits.",
        later: "Good. It may fit; not read yet: adjustable.",
        (*later, "back to results"): "Mistake. Result 2 may fit.",
        (*later, "read the features"): "Good. It fits; not chosen yet: white.",
        (*later, "read the features", "choose white"): "Good. It fits, and all is chosen.",
        (*later, "buy now"): "Mistake. The order is placed.",
    }
    for actions, reflection in told.items():
        seen(env, *actions)
        assert env.hints().reflection == reflection
