"""Turns with many seats: the order of the players, what each sees, and what is recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pictured import PICTURES, Pictured

from reflectrl.config.advantage import NoBaseline
from reflectrl.config.training import RLFTSettings
from reflectrl.core import EpisodeFailed, InvalidInput, Observation, Task, Utterance, WorkFailed, register_env
from reflectrl.core.seeds import draw
from reflectrl.envs.number_line import NumberLine
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.chats import policy_chat
from reflectrl.prompts.views import MenuView, State
from reflectrl.rollout import Episode, play_turn, rollout
from reflectrl.rollout.pool import WorkerPool
from reflectrl.rollout.record import Header, read_trajectories, write_trajectories
from reflectrl.rollout.turn import policy_views, states_of
from reflectrl.seats.others import ExpertPolicy, RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import MOMENTS, Seat, reflecting, view
from reflectrl.training.batch import scored, step_samples, weighted_rewards

LAYOUT = PromptFormat(history=2, labels="letters")
REWARD, SPOILER, OPTION = 0.123456789, "the spoiler of the expert", "the answer in the options"


class Secretive(NumberLine):
    """NumberLine with values that no player may see: a reward, a spoiler, and a task's options."""

    def tasks(self, split):
        return [replace(task, options={**task.options, "secret": OPTION}) for task in super().tasks(split)]

    def start(self, task):
        super().start(Task(task.id, {name: value for name, value in task.options.items() if name != "secret"}))

    def act(self, action):
        return replace(super().act(action), reward=REWARD)

    def spoiler(self):
        return SPOILER


class Noting:
    """Player that always says the same words, and records views, draws and its words."""

    def __init__(self, words="Go on.", scores=lambda _: (), log=None):
        self.words = words
        self.scores = scores
        self.views = []
        self.draws = []
        self.log = [] if log is None else log

    def say(self, views, draws):
        self.log += [self.words] * len(views)
        self.views += views
        self.draws += draws
        return [Utterance(self.words, scores=self.scores(view)) for view in views]


class NotingPolicy(RandomPolicy):
    """Random policy that records its views and draws, and that it acted."""

    def __init__(self, log=None):
        self.views = []
        self.draws = []
        self.log = [] if log is None else log

    def act(self, views, draws):
        self.log += ["The act."] * len(views)
        self.views += views
        self.draws += draws
        return super().act(views, draws)


def play(*seats, env=None, policy=None, count=1, seed=5, **options):
    """Play the first tasks of NumberLine."""
    env = env or NumberLine(size=6)
    episodes = [Episode(task, seed + number) for number, task in enumerate(env.tasks("train")[:count])]
    return rollout([env], episodes, policy=policy or RandomPolicy(), seats=seats, layout=LAYOUT, **options)


def rating(view):
    return tuple(float(step) for step in range(len(view.past)))


@pytest.fixture(scope="module")
def full_table():
    """One episode with a player in every seat."""
    log = []
    policy = NotingPolicy(log)
    players = {
        role: Noting(f"Words of the {role}.", rating if role == "rater" else lambda _: (), log) for role in MOMENTS
    }
    seats = [Seat(role, players[role]) for role in MOMENTS]
    (played,) = play(*seats, env=Secretive(size=6), policy=policy, seed=3)
    assert len(played.turns) > 2
    return played, policy, players


# ---- the order of the players, and what each sees --------------------------------------------------------------------


def test_each_seat_is_asked_at_its_moment(full_table):
    played, policy, players = full_table
    steps = len(played.turns)
    asked = {role: len(player.views) for role, player in players.items()}
    assert asked == {"planner": 1, "memory": steps, "reflector": steps, "corrector": steps, "rater": 1}
    assert len(policy.views) == steps
    planner, memory, reflector, corrector, rater = (f"Words of the {role}." for role in MOMENTS)
    assert policy.log == [planner, *[memory, reflector, "The act.", corrector] * steps, rater]
    assert set(played.turns[0].said) == {"planner", "memory", "reflector", "corrector"}
    assert set(played.turns[1].said) == {"memory", "reflector", "corrector"}
    assert set(played.turns[-1].said) == {"memory", "reflector", "corrector", "rater"}


def test_who_sees_what(full_table):
    played, policy, players = full_table
    before = ("planner", "memory", "reflector")
    for role, seen in (*((role, player.views) for role, player in players.items()), ("policy", policy.views)):
        expected = {"policy": before, "corrector": before, "reflector": before[:2], "memory": before[:1]}.get(role, ())
        for each in seen:
            assert tuple(each.said) == expected, role
            assert isinstance(each, MenuView) == (role in ("policy", "corrector")), role
            assert each.action == (played.turns[len(each.past)].decision.action if role == "corrector" else None)
            assert bool(each.visited) == (role == "rater")
            assert all(f"Words of the {other}." in each.prompt.text for other in expected)
    (end,) = players["rater"].views
    assert end.past == played.actions
    assert end.visited == tuple(turn.observation for turn in played.turns)


def test_nobody_sees_rewards_or_spoilers(full_table):
    _, policy, players = full_table
    seen = [policy.views, *(player.views for player in players.values())]
    for secret in (str(REWARD), "success", SPOILER, OPTION):
        assert secret not in repr(seen)


def test_only_players_that_read_hints_are_given_them():
    noting = Noting()
    play(Seat("memory", noting), *reflecting(ExpertReflector()), env=Secretive(size=6), policy=ExpertPolicy())
    assert noting.views
    assert all(each.hints is None for each in noting.views)


def test_a_role_without_a_place_at_the_table_is_refused():
    with pytest.raises(InvalidInput, match="'critic'"):
        Seat("critic", ExpertReflector())
    with pytest.raises(InvalidInput, match="'critic'"):
        view("critic", LAYOUT, State(Observation("Here.", ("go",))))


def test_another_seat_moves_nobodys_draws():
    alone, more = NotingPolicy(), NotingPolicy()
    play(policy=alone)
    play(Seat("memory", Noting()), Seat("reflector", Noting()), policy=more)
    assert more.draws[: len(alone.draws)] == alone.draws
    assert alone.draws == [draw(5, step, "policy") for step in range(len(alone.draws))]
    assert all(0 <= number < 1 for number in alone.draws)


def test_words_that_are_in_view_already_are_not_asked_for():
    reflector = Noting()
    here = Observation("Here.", ("go", "wait"))
    states = [State(here, said={"reflector": "Given."}), State(here)]
    given, asked = play_turn(states, policy=RandomPolicy(), seats=[Seat("reflector", reflector)], layout=LAYOUT)
    assert (given.reflection, given.said) == ("Given.", {})
    assert (asked.reflection, asked.said) == ("Go on.", {"reflector": Utterance("Go on.")})
    assert len(reflector.views) == 1


# ---- a memory --------------------------------------------------------------------------------------------------------


class Counting:
    """Memory whose words change with every query, as if it grew during an episode."""

    def __init__(self):
        self.asked = 0

    def say(self, views, draws):  # noqa: ARG002 - nothing is drawn
        words = [f"example {self.asked + number}" for number, _ in enumerate(views)]
        self.asked += len(views)
        return [Utterance(text) for text in words]


def test_what_the_memory_showed_is_scored_again_unchanged(tmp_path):
    policy, seats = NotingPolicy(), [Seat("memory", Counting()), *reflecting(ExpertReflector())]
    played = play(*seats, policy=policy, count=4)
    play(*seats, count=4)  # the memory's words have changed since
    file = tmp_path / "episodes.jsonl"
    write_trajectories(file, Header("number_line", {"size": 6}, LAYOUT), played)
    header, read = read_trajectories(file)
    assert read == played
    samples = step_samples(read, header.prompt, RLFTSettings(advantage=NoBaseline(normalize=False)))
    assert [sample.view.prompt for sample in samples] == [each.prompt for each in policy.views]
    assert "Memory: example 1\n" in policy.views[1].prompt.text


@pytest.mark.parametrize("words", ["Go on.", None, [], ["Go on."]])
def test_a_player_that_gives_no_utterance_per_view_is_named(words):
    class Careless:
        def say(self, views, draws):  # noqa: ARG002
            return words

    for role in ("memory", "rater"):
        with pytest.raises(WorkFailed, match=f"the {role}'s player Careless returned .* for 1 views"):
            play(Seat(role, Careless()))


def test_a_seat_needs_a_player_and_a_role_no_second_one():
    with pytest.raises(InvalidInput, match=r"the seat of the memory was given .*Noting.*not a class"):
        Seat("memory", Noting)
    with pytest.raises(InvalidInput, match="2 players were seated as 'memory'"):
        play(Seat("memory", Noting()), Seat("reflector", Noting()), Seat("memory", Noting()))


def test_a_plan_stays_in_view_until_the_end(full_table):
    played, policy, _ = full_table
    assert all("Plan: Words of the planner.\n" in each.prompt.text for each in policy.views)
    assert [each.prompt for each in policy_views(played, LAYOUT)] == [each.prompt for each in policy.views]


# ---- a rater ---------------------------------------------------------------------------------------------------------


def rated_episode(scores):
    (played,) = play(Seat("rater", Noting(scores=scores)))
    return played


def test_episodes_keep_their_own_ratings():
    by_target = Noting(scores=lambda view: [float(view.observation.text[-2])] * len(view.past))
    envs, ended = [NumberLine(size=6) for _ in range(2)], []
    tasks = {task.id: task for task in envs[0].tasks("train")}
    episodes = [Episode(tasks[name], 0) for name in ("1-to-4", "0-to-1")]
    options = {"policy": ExpertPolicy(), "seats": [Seat("rater", by_target)], "layout": LAYOUT}
    played = rollout(envs, episodes, **options, on_episode=lambda each: ended.append(each.task.id))
    assert ended == ["0-to-1", "1-to-4"]
    assert [each.turns[-1].rewards["rater"] for each in played] == [4.0, 1.0]


def test_a_raters_scores_are_added_with_their_weight():
    played = rated_episode(rating)
    steps = len(played.turns)
    assert [turn.rewards["rater"] for turn in played.turns] == list(range(steps))
    plain = RLFTSettings(advantage=NoBaseline(normalize=False), rewards={"rater": 2.0})
    samples = step_samples([played], LAYOUT, plain)
    assert [sample.target for sample in samples] == [2.0 * sum(range(at, steps)) for at in range(steps)]
    both = step_samples([played], LAYOUT, replace(plain, gamma=0.0, rewards={"env": 1.0, "rater": 0.5}))
    expected = [turn.reward + 0.5 * step for step, turn in enumerate(played.turns)]
    assert [sample.target for sample in both] == pytest.approx(expected)


def test_a_failed_rating_is_absent_and_its_episode_is_not_learned_from():
    failed = rated_episode(lambda _: ())
    partly = rated_episode(lambda view: (*(None for _ in view.past[1:]), 1.0))
    assert not any("rater" in turn.rewards for turn in failed.turns)
    assert [turn.rewards.get("rater") for turn in partly.turns] == [None] * (len(partly.turns) - 1) + [1.0]
    assert not scored(failed, {"env": 1.0, "rater": 1.0})
    assert scored(failed, {"env": 1.0})
    assert scored(partly, {"rater": 1.0})
    assert weighted_rewards(partly, {"env": 0.0, "rater": 1.0}) == [0.0] * (len(partly.turns) - 1) + [1.0]
    with pytest.raises(WorkFailed, match="rater"):
        rated_episode(lambda _: (1.0,) * 99)


# ---- images ----------------------------------------------------------------------------------------------------------


def pictured(words=True):
    env = Pictured(size=6)
    env.words = words
    return play(env=env, seed=1)


def test_images_stand_beside_the_trajectories_by_the_hash_of_their_bytes(tmp_path):
    played, file, damaged = pictured(), tmp_path / "episodes.jsonl", f"{PICTURES[1].sha256}.png"
    write_trajectories(file, Header("number_line", {}, LAYOUT), played)
    assert {path.name: path.read_bytes() for path in (tmp_path / "images").iterdir()} == {
        f"{picture.sha256}.png": picture.data for picture in PICTURES
    }
    assert PICTURES[0].sha256 in file.read_text(encoding="utf-8")
    assert read_trajectories(file)[1] == played
    for damage in (lambda image: image.write_bytes(b"other"), lambda image: image.unlink()):
        damage(tmp_path / "images" / damaged)
        with pytest.raises(InvalidInput, match=PICTURES[1].sha256):
            read_trajectories(file)


def test_players_that_read_text_refuse_a_state_that_only_an_image_shows():
    (played,) = pictured(words=False)  # by a random player
    prompt = policy_views(played, LAYOUT)[0].prompt
    assert prompt.images == played.turns[0].observation.images
    env = Pictured(size=6)
    env.words = False
    for refuses in (lambda: policy_chat(prompt), lambda: play(Seat("memory", ExpertReflector()), env=env)):
        with pytest.raises(InvalidInput, match=r"Observation\.text"):
            refuses()


def test_a_role_that_sees_pictures_sees_them_in_place_of_the_text():
    (played,) = pictured()
    (state, *_), seeing = states_of(played), replace(LAYOUT, images=("reflector",))
    shown, read = (view("reflector", layout, state).prompt for layout in (seeing, LAYOUT))
    assert (shown.images, read.images) == (state.observation.images, ())
    assert (state.observation.text in shown.text, state.observation.text in read.text) == (False, True)
    with pytest.raises(InvalidInput, match=r"model\.images"):
        view("reflector", seeing, replace(state, observation=replace(state.observation, images=())))


def test_images_come_out_of_a_worker_process_unchanged():
    register_env("pictured", "pictured:Pictured")
    with WorkerPool(1) as pool:
        (env,) = pool.make("pictured", {"size": 6}, 1)
        env.reset(seed=1)
        assert env.observation.images == (PICTURES[0],)


# ---- episodes that run out of time -----------------------------------------------------------------------------------


class Valuing(ExpertPolicy):
    """Expert policy that values each state by the number of previous actions."""

    def act(self, views, draws):
        return [
            replace(each, value=len(view.past) + 0.5)
            for view, each in zip(views, super().act(views, draws), strict=True)
        ]


def walked(env, *seats, horizon=2, bootstrap=True):
    """Play the longest task for at most ``horizon`` steps."""
    env.horizon = horizon
    far = max(env.tasks("train"), key=lambda task: abs(task.options["start"] - task.options["target"]))
    (played,) = rollout([env], [Episode(far, 0)], policy=Valuing(), seats=seats, layout=LAYOUT, bootstrap=bootstrap)
    return played


@pytest.mark.parametrize(("horizon", "bootstrap", "last"), [(2, True, 2.5), (2, False, 0.0), (50, True, 0.0)])
def test_the_value_of_the_state_in_which_time_ran_out_is_kept(horizon, bootstrap, last):
    played = walked(NumberLine(size=10), horizon=horizon, bootstrap=bootstrap)
    assert played.truncated == (horizon == 2)
    assert played.last_value == last


class Silent(NumberLine):
    """Environment whose expert fails in the state in which the time runs out."""

    def hints(self, previous=None):
        if self.steps == 2:
            raise EpisodeFailed("broken")
        return super().hints(previous)


def test_an_expert_that_fails_at_the_end_leaves_no_value():
    played = walked(Silent(size=10), *reflecting(ExpertReflector()))
    assert (played.truncated, played.last_value) == (True, 0.0)


def test_nobody_corrects_the_policy_in_a_state_that_is_only_valued():
    memory, corrector = Counting(), Counting()
    assert walked(NumberLine(size=10), Seat("memory", memory), Seat("corrector", corrector)).last_value
    assert (memory.asked, corrector.asked) == (3, 2)
