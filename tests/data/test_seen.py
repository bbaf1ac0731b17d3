"""What a model has seen is recognised by content: copies and edits are, other rollouts of the same scene are not."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demerit.data.episode import Episode, Origin
from demerit.data.frames import Frames, SplicedFrames
from demerit.data.splits import SEEN, SeenEpisodes, seen_by
from demerit.data.video import write_video
from demerit.errors import BadInput
from demerit.models import load_model
from demerit.models.ensemble import Ensemble
from demerit.models.protocol import example_card
from demerit.negatives.negative import load_negative
from fakes.lesson_data import draw_images, episode

START = draw_images(np.zeros(12), 0, 32)


def write_rollout(path: Path, seed: int) -> Episode:
    """Every rollout begins with the same images."""
    write_video(path, np.concatenate([START, draw_images(np.linspace(0, 1, 12), seed, 32)]))
    return Episode.from_video(path, "push it")


def test_a_copy_under_another_name_is_recognised_and_another_rollout_of_the_scene_is_not(tmp_path: Path) -> None:
    one, other = write_rollout(tmp_path / "one.mp4", 1), write_rollout(tmp_path / "two.mp4", 2)
    assert np.array_equal(one.main.take([0, 5]), other.main.take([0, 5]))
    seen = SeenEpisodes.of([one])
    copy = shutil.copy(tmp_path / "one.mp4", tmp_path / "renamed.mp4")
    assert seen.has(Episode.from_video(copy, "another instruction")) and not seen.has(other)


def test_edits_and_splices_of_a_seen_episode_are_seen(tmp_path: Path) -> None:
    one, other, third = (write_rollout(tmp_path / f"{seed}.mp4", seed) for seed in (1, 2, 3))
    seen, fresh = SeenEpisodes.of([other]), SeenEpisodes.of([third])
    parts = ((one.main.source, 0, 9), (other.main.source, 9, 20))
    splice = replace(one, id="splice", views={"main": Frames(SplicedFrames(parts))})
    good = replace(other, outcomes=episode(True, 1).outcomes)
    rewound = load_negative("rewind").make_with_seed(good, 0)
    assert seen.has(splice) and seen.has(rewound) and not fresh.has(splice) and not fresh.has(rewound)


def test_a_simulated_episode_is_recognised_by_its_seed() -> None:
    tags = {"task": "push", "behaviour": "expert", "setting": "varied", "seed": "3"}
    small, large = (
        Episode("push", "", {"main": Frames.from_array(draw_images(np.ones(3), 0, side))}, origin=Origin(tags=tags))
        for side in (16, 32)
    )
    other = replace(large, origin=Origin(tags={**tags, "seed": "10000"}))
    seen = SeenEpisodes.of([small])
    assert seen.has(large) and not seen.has(other)


def test_the_record_is_eight_bytes_per_video_and_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / SEEN
    seen = SeenEpisodes.of(episode(True, seed) for seed in range(5))
    path.write_bytes(seen.content())
    assert SeenEpisodes.read(path) == seen and len(seen.marks) == 5
    assert len(path.read_bytes()) < 5 * 11 + 80
    assert SeenEpisodes.read(tmp_path / "absent.json") == SeenEpisodes(complete=False)
    facts = json.loads(path.read_bytes())
    for damaged in ("null", "[" * 100_000, json.dumps({**facts, "marks": "AAAA"}), json.dumps({**facts, "format": 2})):
        path.write_text(damaged)
        with pytest.raises(BadInput):
            SeenEpisodes.read(path)


def test_the_shipped_network_knows_its_training_set() -> None:
    seen = seen_by(load_model("default"))
    facts = json.loads((Path(load_model.__code__.co_filename).parents[1] / "assets/compact/training.json").read_bytes())
    assert len(seen.marks) == sum(facts["episodes"].values()) and seen.complete
    spec = {"task": "push", "behaviour": "expert", "setting": "varied"}
    for seed, known in ((0, True), (14, True), (1017, True), (10_000, False), (20_000, False)):
        made = replace(episode(True, 1), origin=Origin(tags={**spec, "seed": str(seed)}))
        assert seen.has(made) == known


def test_an_ensemble_has_seen_what_its_members_have() -> None:
    class Fitted:
        def __init__(self, name: str, seed: int, complete: bool) -> None:
            self.card = example_card(name=name)
            self.seen = replace(SeenEpisodes.of([episode(True, seed)]), complete=complete)

        def score(self, episodes: list[Episode]) -> list:
            return []

    both = Ensemble([Fitted("a", 1, True), Fitted("b", 2, False)])
    assert [both.seen.has(episode(True, seed)) for seed in (1, 2, 3)] == [True, True, False]
    assert not both.seen.complete and seen_by(load_model("clock")) == SeenEpisodes()
