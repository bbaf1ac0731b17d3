"""The words of the prompts, the frames in them, and the failures distilled from people's remarks."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from demerit.data.frames import spread
from demerit.errors import BadInput, StoreError
from demerit.models.gvl import GVLConfig
from demerit.models.gvl.frames import choose, jpeg
from demerit.models.gvl.wording import FOLDER, VERSIONS, Label, opening, words, words_hash
from fakes.judge.faults import Faults
from fakes.judge.server import ScriptedServer
from fakes.prompted import Watcher, coloured, failed, gvl, is_feedback
from fakes.prompted import hang_up as _hang_up  # noqa: F401


@given(
    st.sampled_from(["frame", "failure", "reference", "anchor"]),
    st.integers(1, 99),
    st.integers(1, 9),
    st.integers(0, 100),
)
def test_labels_are_read_back(role: str, number: int, example: int, percent: int) -> None:
    facts = {
        "frame": Label("frame", number),
        "failure": Label("failure", number, example),
        "reference": Label("reference", number, example, percent),
        "anchor": Label("anchor"),
    }[role]
    assert Label.read(str(facts)) == facts


def test_other_texts_are_no_labels() -> None:
    assert Label.read("Frame 3: 45%") is None and Label.read(words("system")) is None


def test_every_prompt_is_a_file_with_its_version_and_every_blank_is_filled() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}-{number}.txt" for name, number in VERSIONS.items()}
    blanks = {"task": "T", "failures": "F", "count": 3, "remarks": "R"}
    for name in VERSIONS:
        assert not re.search(r"\$\w", words(name, **blanks))
        assert opening(name)
    assert len(words_hash()) == 32


def test_what_is_filled_in_is_left_as_it_is() -> None:
    assert 'told: "put $count {cups} $task"' in words("task", task="put $count {cups} $task")


@given(st.integers(1, 300), st.integers(2, 40), st.text(max_size=5))
def test_chosen_frames(length: int, budget: int, seed: str) -> None:
    shown = choose(length, budget, seed)
    assert shown.anchor == 0
    assert shown.at().tolist() == spread(length, budget).tolist(), "what the card says is decoded"
    assert len(shown) == min(length, budget) - 1
    assert choose(length, budget, seed).order.tolist() == shown.order.tolist()


def test_the_order_is_the_same_on_every_machine() -> None:
    assert choose(8, 8, "seed").order.tolist() == [4, 7, 5, 2, 6, 3, 1]


def test_orders_are_spread_evenly() -> None:
    places = np.array([choose(5, 5, str(seed)).order for seed in range(4000)])
    for place in range(4):
        shares = np.bincount(places[:, place], minlength=5)[1:] / 4000
        assert shares == pytest.approx([0.25] * 4, abs=0.03)


def test_a_budget_of_one_asks_nothing() -> None:
    with pytest.raises(BadInput, match="at least 2"):
        choose(5, 1, "")


@pytest.mark.parametrize(("shape", "size"), [((48, 64), (32, 24)), ((64, 48), (24, 32)), ((20, 30), (30, 20))])
def test_pictures_keep_their_colours_and_shape(shape: tuple[int, int], size: tuple[int, int]) -> None:
    image = np.zeros((*shape, 3), np.uint8)
    image[:, : shape[1] // 2] = (220, 30, 60)
    image[:, shape[1] // 2 :] = (20, 90, 200)
    decoded = Image.open(io.BytesIO(jpeg(image, 32).data))
    assert (decoded.mode, decoded.size) == ("RGB", size)
    pixels = np.asarray(decoded).astype(int)
    assert np.abs(pixels[size[1] // 2, 2] - (220, 30, 60)).max() <= 4
    assert np.abs(pixels[size[1] // 2, -3] - (20, 90, 200)).max() <= 4


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(BadInput, match=r"uint8 of shape \(height, width, 3\)"):
        jpeg(np.zeros((4, 4, 3), np.float32), 32)  # type: ignore[arg-type]


@pytest.mark.parametrize("cache", ["{}/file/answers.sqlite", "~nobody-of-that-name/answers.sqlite", "{}/a\0b/answers"])
def test_a_place_where_no_answer_can_be_kept_is_a_sentence(tmp_path: Path, cache: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"answers cannot be kept there \(.*; set DEMERIT_CHAT_CACHE to another file"):
        GVLConfig(cache=cache.format(tmp_path)).cache_file()


def test_remarks_are_distilled_once_and_cached(tmp_path: Path) -> None:
    watcher = Watcher()
    examples = [coloured("x", blue=90, outcomes=(failed("  the cup\n fell  "),), group="s"), coloured("y", blue=110)]
    examples += [coloured("z", blue=130, outcomes=(failed("the cup fell"),), group="s")]
    with ScriptedServer(watcher) as server:
        model = gvl(server, tmp_path, "text", examples=examples)
        model.score([coloured(f"e{i}", blue=i) for i in range(5)])
        asked = [one for one in watcher.requests if is_feedback(one)]
        assert len(asked) == 1 and asked[0].text.count("the cup fell") == 1
        assert asked[0].body["temperature"] == 0
        gvl(server, tmp_path, "video", examples=examples).score([coloured("e9", blue=9)])
    assert sum(map(is_feedback, watcher.requests)) == 1, "another context has the same descriptions"


def test_failed_distillation_is_said_and_the_rollout_still_scored(tmp_path: Path) -> None:
    examples = [coloured("x", blue=90, outcomes=(failed("the cup fell"),))]
    with ScriptedServer(Watcher(), Faults(script=["refusal"])) as server:
        reward = gvl(server, tmp_path, "text", examples=examples).score([coloured("one")])[0]
    assert reward.scored and "failure descriptions: refused" in reward.given["lacking"][0]
