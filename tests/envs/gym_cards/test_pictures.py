"""Pictures of states: real PNG files, equal for equal states only, large enough to be read; an error without Pillow."""

from __future__ import annotations

import io
import random
import subprocess
import sys

import pytest
from PIL import Image

from reflectrl.core import make_env
from reflectrl.envs.gym_cards.game import PAPER, TABLE, draw

WITHOUT_PILLOW = """
import sys
sys.modules["PIL"] = None
from reflectrl.core import InvalidInput, make_env
print(make_env("gym_cards:blackjack").reset(seed=0)[0])
try:
    make_env("gym_cards:blackjack", observation="image")
except InvalidInput as error:
    print(error)
"""


def shown(name, episodes):
    """Text and picture of states of random episodes."""
    env, rng = make_env("gym_cards", game=name, observation="both"), random.Random(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        while not env._ended:
            yield env.observation
            env.step(rng.choice(env.observation.actions))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["number_line", "blackjack"])
def test_equal_states_have_equal_bytes_and_different_states_do_not(name):
    pictures = {}
    for observation in shown(name, episodes=25):
        (picture,) = observation.images
        assert pictures.setdefault(observation.text, picture.data) == picture.data
    draw.cache_clear()
    again = {observation.text: observation.images[0].data for observation in shown(name, episodes=25)}
    assert again == pictures
    assert len(set(pictures.values())) == len(pictures) > 5


@pytest.mark.parametrize(("name", "ground"), [("number_line", PAPER), ("points24", TABLE)])
def test_pictures_are_png_files_of_300_by_300_pixels(name, ground):
    image = Image.open(io.BytesIO(next(shown(name, episodes=1)).images[0].data))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (300, 300))
    red, green, blue = image.getpixel((299, 299))
    assert f"#{red:02x}{green:02x}{blue:02x}" == ground
    assert sum(count for count, color in image.getcolors(90_000) if color != (red, green, blue)) > 500


def test_a_player_of_pictures_gets_no_text_and_a_reader_no_picture():
    for observation, expected in (("text", (True, 0)), ("image", (False, 1)), ("both", (True, 1))):
        env = make_env("gym_cards:ez_points", observation=observation)
        env.reset(seed=0)
        assert (bool(env.observation.text), len(env.observation.images)) == expected


def test_without_pillow_there_are_no_pictures_but_all_the_rest():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PILLOW], capture_output=True, text=True, check=True)
    text, error = done.stdout.splitlines()
    assert text.startswith("Your cards: ")
    assert "pip install 'reflectrl[vision]'" in error
