"""The simulated judge reads pictures, knows the truth, and is wrong exactly as it was told to be."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from demerit.data.episode import Episode
from demerit.data.frames import Frames
from demerit.data.labels import Outcome
from demerit.data.taxonomy import kinds
from demerit.errors import BadInput
from demerit.llm import Message
from demerit.models.gvl.prompt import fill_prompt
from fakes.judge.album import Album, signature_of_bytes, signatures
from fakes.judge.error_model import JudgeErrors, ShownFailures, hopeful_progress, perceive
from fakes.judge.prompt_reader import read_prompt
from fakes.judge.server import Request, question_hash
from fakes.judge.truth import NAME, NOT_ASKED, NOT_NAMED, UNKNOWN, SimulatedJudge, kinds_in, kinds_of
from fakes.judged_scenes import FRAMES, attempt, attempts, done, dropped, request, stopped

EXACT = JudgeErrors(optimism=0, blind={}, blind_otherwise=0, bias=0, noise=0)
BIASED = JudgeErrors(
    optimism=0.3, blind={"dropped": 0.8}, blind_otherwise=0.4, bias=0, noise=0, text=0.1, video=0.4, dense=0.8
)


@pytest.fixture(scope="module")
def known() -> list[Episode]:
    return attempts()


def say(judge: SimulatedJudge, body: dict[str, Any]) -> str:
    body = {"model": NAME, **body}
    return judge(Request(body, 0, 0, question_hash(body)))


def percents(answer: str) -> dict[int, float]:
    return {one["frame"]: one["percent"] / 100 for one in json.loads(answer)["frames"]}


@pytest.mark.parametrize(("size", "quality"), [(64, 90), (64, 40), (32, 90), (48, 60)])
def test_pictures_are_recognised_after_compression_and_resizing(known: list[Episode], size: int, quality: int) -> None:
    album = Album(known)
    shown = [11, 2, 14, 0]
    for episode in known:
        pictures = []
        for image in episode.main.take(shown):
            file = io.BytesIO()
            Image.fromarray(image).resize((size, size)).save(file, "JPEG", quality=quality)
            pictures.append(signature_of_bytes(file.getvalue()))
        seen = album.recognise(pictures)
        assert seen is not None
        assert seen.episode.id == episode.id
        curve = episode.outcome.curve  # type: ignore[union-attr]
        np.testing.assert_allclose(curve[list(seen.frames)], curve[shown], atol=0.03)  # frames may look the same


def test_the_first_picture_alone_does_not_tell_attempts_of_one_scene_apart_but_all_of_them_do(
    known: list[Episode],
) -> None:
    album = Album(known)
    success, drop, _ = known[:3]
    first = list(signatures(drop.main.take([0])))
    seen = album.recognise(first)
    assert seen is not None
    assert seen.episode.origin.group == drop.origin.group
    together = album.recognise([*first, *signatures(drop.main.take([3, 12]))])
    assert together is not None
    assert together.episode is drop
    assert together.episode is not success


def test_strange_pictures_are_not_taken_for_known_ones(known: list[Episode]) -> None:
    strange = attempt(99, done())
    assert Album(known).recognise(list(signatures(strange.main.take([0, 5])))) is None
    assert say(SimulatedJudge(known, EXACT), request(strange, [3, 5])) == UNKNOWN
    assert Album(known).recognise([]) is None


def test_only_measured_episodes_are_remembered(known: list[Episode]) -> None:
    judged = replace(known[0], id="judged", outcomes=(Outcome("human", success=True),))
    album = Album([*known, judged])
    assert len(album) == len(known)
    assert album.left_out == ["judged"]
    with pytest.raises(BadInput, match="progress measured by a simulator"):
        Album([judged])


def test_an_exact_judge_repeats_the_measured_curve(known: list[Episode]) -> None:
    judge = SimulatedJudge(known, EXACT)
    order = [9, 3, 15, 6, 12]
    for episode in known:
        said = percents(say(judge, request(episode, order)))
        curve = episode.outcome.curve  # type: ignore[union-attr]
        assert list(said) == [1, 2, 3, 4, 5]
        np.testing.assert_allclose(list(said.values()), curve[order], atol=0.04)


def test_failures_are_pushed_up_and_successes_are_not(known: list[Episode]) -> None:
    judge = SimulatedJudge(known, BIASED)
    success, drop, stop = known[:3]
    nothing = ShownFailures()
    np.testing.assert_allclose(judge.values(success, nothing), done(), atol=1e-6)
    for episode, blind in ((drop, 0.8), (stop, 0.4)):
        curve = np.asarray(episode.outcome.curve, dtype=float)  # type: ignore[union-attr]
        end = curve[-1] + (0.3 + 0.7 * blind) * (1 - curve[-1])  # the hopeful end is 1, the time having passed
        assert judge.values(episode, nothing)[-1] == pytest.approx(end, abs=1e-6)


def test_the_kind_that_is_seen_best_gives_a_failure_away() -> None:
    assert BIASED.blindness(["dropped"]) == 0.8
    assert BIASED.blindness(["dropped", "incomplete"]) == 0.4
    assert BIASED.blindness([]) == 0.4
    assert JudgeErrors(blind={"drop": 0.1}).blindness(["dropped", "drop"]) == 0.1  # a behaviour's name counts as well


def test_examples_help_text_a_bit_video_more_dense_most(known: list[Episode]) -> None:
    judge = SimulatedJudge(known, BIASED)
    drop = known[1]
    other = known[4]
    assert kinds_of(other) == {"dropped"}
    truth = list(other.outcome.curve)  # type: ignore[union-attr, arg-type]
    told = ["The thing is dropped on the way."]
    ends = {
        "none": say(judge, request(drop, [15])),
        "text": say(judge, request(drop, [15], told)),
        "video": say(judge, request(drop, [15], told, [other])),
        "dense": say(judge, request(drop, [15], told, [other], [(other, truth)])),
    }
    push = 0.3 + 0.7 * 0.8
    for name, relief in (("none", 0), ("text", 0.1), ("video", 0.4), ("dense", 0.8)):
        assert percents(ends[name])[1] == pytest.approx(push * (1 - relief), abs=0.011), name


def test_examples_of_other_failures_help_half_and_examples_of_success_not_at_all(known: list[Episode]) -> None:
    judge = SimulatedJudge(known, BIASED)
    drop, success, stop = known[1], known[3], known[5]
    push = 0.3 + 0.7 * 0.8
    assert percents(say(judge, request(drop, [15], failed=[stop])))[1] == pytest.approx(push * 0.8, abs=0.011)
    assert percents(say(judge, request(drop, [15], failed=[success])))[1] == pytest.approx(push, abs=0.011)
    assert percents(say(judge, request(drop, [15], failed=[attempt(77, stopped())])))[1] == pytest.approx(
        push, abs=0.011
    )


def test_wrong_values_beside_dense_examples_leave_what_the_pictures_give(known: list[Episode]) -> None:
    judge = SimulatedJudge(known, BIASED)
    drop, other = known[1], known[4]
    wrong = [1.0] * FRAMES
    lesson = judge.shown_failures(read_prompt(request(drop, [15], rejected=[(other, wrong)])))
    assert lesson.fidelity == 0
    assert lesson.relief(BIASED, {"dropped"}) == pytest.approx(BIASED.video)
    half = ShownFailures(dense=frozenset({"dropped"}), fidelity=0.5)
    assert half.relief(BIASED, {"dropped"}) == pytest.approx(0.6)


def test_the_same_request_gets_the_same_answer_and_another_sample_another(known: list[Episode]) -> None:
    judge = SimulatedJudge(known, JudgeErrors(noise=0.2))
    again = SimulatedJudge(known, JudgeErrors(noise=0.2))
    body = request(known[1], [3, 9, 15], seed=1)
    assert say(judge, body) == say(judge, body) == say(again, body)
    assert say(judge, body) != say(judge, {**body, "seed": 2})
    assert say(judge, body) != say(SimulatedJudge(known, JudgeErrors(noise=0.2), seed=5), body)


def test_noise_has_the_size_it_was_given_and_moods_stay() -> None:
    flat = attempt(0, np.full(400, 0.5, dtype=np.float32))
    nobody = {"optimism": 0, "blind": {}, "blind_otherwise": 0}
    noisy = SimulatedJudge([flat], JudgeErrors(**nobody, bias=0, noise=0.05))  # type: ignore[arg-type]
    assert np.std(noisy.values(flat, ShownFailures(), "a")) == pytest.approx(0.05, rel=0.15)
    moody = SimulatedJudge([flat], JudgeErrors(**nobody, bias=0.1, noise=0))  # type: ignore[arg-type]
    values = moody.values(flat, ShownFailures(), "a")
    assert np.ptp(values) == 0
    np.testing.assert_array_equal(values, moody.values(flat, ShownFailures(), "b"))


def test_hope_never_falls() -> None:
    curve = np.asarray(dropped(), dtype=float)
    hope = hopeful_progress(curve)
    assert np.all(np.diff(hope) >= 0)
    assert np.all(hope >= curve)
    assert hope[-1] == 1
    seen = perceive(Outcome("simulator", success=False, curve=curve), ["dropped"], ShownFailures(), BIASED)
    assert np.all((seen >= curve) & (seen <= hope))


def test_remarks_are_distilled_into_kinds_of_failure(known: list[Episode]) -> None:
    remarks = "- it dropped the cup, then dropped it again\n- the gripper closed on nothing\n- nice and quick"
    text = fill_prompt("feedback", task="lift the cup", remarks=remarks, count=3)
    answer = say(SimulatedJudge(known), {"messages": [Message.user(text).as_json()]})
    definitions = {kind.name: kind.definition for kind in kinds()}
    assert json.loads(answer) == {"failures": [definitions["dropped"], definitions["missed grasp"]]}
    one = fill_prompt("feedback", task="lift the cup", remarks=remarks, count=1)
    assert len(json.loads(say(SimulatedJudge(known), {"messages": [Message.user(one).as_json()]}))["failures"]) == 1


def test_every_kind_that_the_simulator_measures_is_found_in_its_own_definition() -> None:
    definitions = {kind.name: kind.definition for kind in kinds()}
    for kind in ("dropped", "missed grasp", "not released", "undone", "wrong object", "wrong place", "overshoot"):
        assert kind in kinds_in(definitions[kind]), kind


def test_anything_else_is_answered_with_a_sentence(known: list[Episode]) -> None:
    judge = SimulatedJudge(known)
    assert say(judge, {"messages": [{"role": "user", "content": "Who are you?"}]}) == NOT_ASKED
    assert judge.answer({}) == NOT_ASKED
    assert say(judge, {**request(known[0], [1]), "model": "gpt"}) == NOT_NAMED
    body = request(known[0], [1, 2])
    body["messages"][1]["content"][-1]["image_url"]["url"] = "data:image/jpeg;base64,AAAA"
    assert say(judge, body) == UNKNOWN


def test_a_view_of_a_known_episode_is_known(known: list[Episode]) -> None:
    drop = known[1]
    cut = replace(drop, views={"main": Frames(drop.main.source).select([0, 4, 8, 12])})
    said = percents(say(SimulatedJudge(known, EXACT), request(cut, [1, 2, 3])))
    np.testing.assert_allclose(list(said.values()), drop.outcome.curve[[4, 8, 12]], atol=0.02)  # type: ignore


@pytest.mark.parametrize(("name", "value"), [("optimism", 1.5), ("transfer", -0.1), ("noise", -1.0)])
def test_numbers_that_mean_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"simulated judge: {name}"):
        JudgeErrors(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="dropped"):
        JudgeErrors(blind={"dropped": 2.0})
