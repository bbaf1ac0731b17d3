"""The built-in edits: of time (which frames are visible), of two attempts (splice), and of the instruction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from demerit.data.arrays import Floats32, Ints
from demerit.data.episode import Edit, Episode, Event, Outcome, normalize_instruction, same_task, with_check
from demerit.data.frames import Frames, Indices, SplicedFrames, short_hash
from demerit.data.stages import StageSpan
from demerit.errors import NotApplicable
from demerit.negatives.negative import (
    DONE_GRADE,
    ID_DIGITS,
    UNFINISHED_GRADES,
    Targets,
    grade_of,
    negative,
    require_success,
    targets_of,
    trusted_outcome,
)

if TYPE_CHECKING:
    from demerit.negatives.mix import Pool

Span = TypeVar("Span", Event, StageSpan)
FEWEST_TO_CLIP = 2
FEWEST_TO_STALL = 3
FEWEST_TO_JUMP = 4
FEWEST_TO_SPLICE = 4
LEAST_MISSING = 0.25
LEAST_SLOW, SLOWEST = 1.5, 3.0
EASY = 0.25
"""share of wrong instructions drawn from any task instead of the most similar ones"""


def build_edited(
    episode: Episode,
    name: str,
    params: Mapping[str, Any],
    outcome: Outcome,
    *,
    views: Mapping[str, Frames] | None = None,
    instruction: str | None = None,
) -> Episode:
    """Build the edited episode: new id, `origin.parent`, one outcome.

    Outcomes, people's checks of them and signals of the original do not apply to it and are dropped (actions played
    backwards are not actions).
    """
    digits = short_hash(json.dumps(dict(params), sort_keys=True).encode())[:ID_DIGITS]
    origin = with_check(episode, "").origin
    return Episode(
        id=f"{episode.id}+{name}-{digits}",
        instruction=episode.instruction if instruction is None else instruction,
        views=episode.views if views is None else views,
        outcomes=(outcome,),
        # Without a group, the original is the group: a split must not separate it from its edits.
        origin=replace(origin, parent=episode.id, group=origin.group or episode.id),
        edits=(*episode.edits, Edit(name, dict(params))),
    )


def select_frames(
    episode: Episode,
    name: str,
    params: Mapping[str, Any],
    indices: npt.NDArray[np.integer[Any]],
    targets: Targets,
    *,
    events: tuple[Event, ...] = (),
) -> Episode:
    """Build an episode of the given frames of every camera, labelled by the targets at these frames.

    A video that ends where the task is done is a success of grade 5; any other is a failure with the grade of its last
    frame.
    """
    curve = targets.curve[indices]
    finished = bool(targets.done[indices[-1]])
    progress = float(curve[-1])
    if targets.events and np.all(np.diff(indices) >= 0):
        events = (*move_spans(targets.events, indices), *events)
    outcome = Outcome(
        "edit",
        success=finished,
        progress=progress,
        grade=DONE_GRADE if finished else grade_of(progress),
        curve=curve,
        events=events,
        by=name,
    )
    views = {camera: frames.select(indices) for camera, frames in episode.views.items()}
    return build_edited(episode, name, params, outcome, views=views)


def pick(candidates: Indices, rng: np.random.Generator, given: int | None, grade: int | None, what: str) -> int:
    """Draw one of the candidate frames, or check the given one."""
    if given is not None:
        if given not in candidates:
            raise NotApplicable(f"{what} is not at a possible frame")
        return int(given)
    if not len(candidates):
        at = "unfinished frame" if grade is None else f"frame at grade {grade}"
        raise NotApplicable(f"it has no {at} to end at")
    return int(candidates[rng.integers(len(candidates))])


def move_spans(spans: Iterable[Span], indices: npt.NDArray[np.integer[Any]]) -> Iterator[Span]:
    """Find the original's events or stages among frames in forward order."""
    for span in spans:
        places = np.flatnonzero((indices >= span.first) & (indices <= span.last))
        if len(places):
            yield replace(span, first=int(places[0]), last=int(places[-1]))


# Edits of time. The label follows the last frame, as in RoboReward's rubric, which judges the final state and sets no
# time limit. So slow, stall and jump stay successes of grade 5 with another progress curve: a model that follows the
# clock gets them wrong, one that looks at the frames gets them right.


@negative("clip", grades=UNFINISHED_GRADES)
def clip(episode: Episode, rng: np.random.Generator, *, grade: int | None = None, last: int | None = None) -> Episode:
    """Keep the frames up to `last` (RoboReward's negative clipping). The video just ends, so there is no event."""
    targets = targets_of(episode, FEWEST_TO_CLIP)
    last = pick(targets.ends(grade, first=FEWEST_TO_CLIP - 1), rng, last, grade, "the cut")
    return select_frames(episode, "clip", {"last": last}, np.arange(last + 1), targets)


@negative("rewind", grades=UNFINISHED_GRADES)
def rewind(
    episode: Episode,
    rng: np.random.Generator,
    *,
    grade: int | None = None,
    turn: int | None = None,
    last: int | None = None,
) -> Episode:
    """Forward to `turn`, then back to the earlier frame `last` (Robometer's video rewind)."""
    targets = targets_of(episode)
    progress = np.where(np.isnan(targets.curve), -np.inf, targets.curve)
    most_from_here = np.maximum.accumulate(progress[::-1])[::-1]
    ends = targets.ends(grade)
    # Going back undoes something only if there is more progress later.
    last = pick(ends[most_from_here[ends] > targets.curve[ends]], rng, last, grade, "the end")
    later = np.arange(last + 1, len(targets), dtype=np.int32)
    turn = pick(later[targets.curve[later] > targets.curve[last]], rng, turn, None, "the turn")
    indices = np.concatenate([np.arange(turn + 1), np.arange(turn - 1, last - 1, -1)])
    return _play_back(episode, "rewind", {"turn": turn, "last": last}, indices, targets, turn + 1)


@negative("reverse", grades=(1,))
def reverse(episode: Episode, rng: np.random.Generator) -> Episode:
    """The whole video backwards."""
    targets = _check_start(targets_of(episode))
    return _play_back(episode, "reverse", {}, np.arange(len(targets) - 1, -1, -1), targets, 1)


@negative("undo", grades=(1,))
def undo(episode: Episode, rng: np.random.Generator) -> Episode:
    """The whole video forwards, then backwards."""
    targets = _check_start(targets_of(episode))
    end = len(targets) - 1
    indices = np.concatenate([np.arange(end + 1), np.arange(end - 1, -1, -1)])
    return _play_back(episode, "undo", {}, indices, targets, end + 1)


@negative("freeze", grades=UNFINISHED_GRADES)
def freeze(episode: Episode, rng: np.random.Generator, *, grade: int | None = None, at: int | None = None) -> Episode:
    """Forward to frame `at`, which is repeated up to the original's length, so that the length is not a cue."""
    targets = targets_of(episode)
    at = pick(targets.ends(grade), rng, at, grade, "the stop")
    event = Event("incomplete", at + 1, len(targets) - 1, "stands still")
    indices = np.minimum(np.arange(len(targets)), at)
    return select_frames(episode, "freeze", {"at": at}, indices, targets, events=(event,))


@negative("slow", grades=(DONE_GRADE,))
def slow(episode: Episode, rng: np.random.Generator, *, factor: float | None = None) -> Episode:
    """Every frame, `factor` times as slow."""
    targets = targets_of(episode)
    factor = round(float(rng.uniform(LEAST_SLOW, SLOWEST)), 2) if factor is None else factor
    if factor <= 1:
        raise NotApplicable("the factor does not slow it down")
    steps = np.arange(int(np.ceil(len(targets) * factor)))
    return select_frames(episode, "slow", {"factor": factor}, (steps / factor).astype(np.int64), targets)


@negative("stall", grades=(DONE_GRADE,))
def stall(episode: Episode, rng: np.random.Generator, *, at: int | None = None, frames: int | None = None) -> Episode:
    """Stop at frame `at` for `frames` more frames, then continue to the end."""
    targets = targets_of(episode, FEWEST_TO_STALL)
    length = len(targets)
    at = pick(np.arange(1, length - 1, dtype=np.int32), rng, at, None, "the stop")
    frames = int(rng.integers(max(1, length // 4), length + 1)) if frames is None else frames
    if frames < 1:
        raise NotApplicable("the stop has no frame")
    indices = np.concatenate([np.arange(at + 1), np.full(frames, at), np.arange(at + 1, length)])
    event = Event("hesitation", at + 1, at + frames, "stands still, then goes on")
    return select_frames(episode, "stall", {"at": at, "frames": frames}, indices, targets, events=(event,))


@negative("jump", grades=(DONE_GRADE,))
def jump(episode: Episode, rng: np.random.Generator, *, before: int | None = None, after: int | None = None) -> Episode:
    """Keep the frames up to `before` and from `after` on; at least a quarter is missing between them."""
    targets = targets_of(episode, FEWEST_TO_JUMP)
    length = len(targets)
    missing = max(1, int(np.ceil(LEAST_MISSING * length)))
    before = pick(np.arange(length - 1 - missing, dtype=np.int32), rng, before, None, "the last frame before it")
    after = int(rng.integers(before + 1 + missing, length)) if after is None else after
    if not before + 1 < after < length:
        raise NotApplicable("nothing is missing between the two parts")
    indices = np.concatenate([np.arange(before + 1), np.arange(after, length)])
    return select_frames(episode, "jump", {"before": before, "after": after}, indices, targets)


def _play_back(
    episode: Episode, name: str, params: dict[str, int], indices: Ints, targets: Targets, first: int
) -> Episode:
    event = Event("undone", first, len(indices) - 1, "played backwards")
    return select_frames(episode, name, params, indices, targets, events=(event,))


def _check_start(targets: Targets) -> Targets:
    if np.isnan(targets.curve[0]) or targets.done[0]:
        raise NotApplicable("its first frame is not known to be unfinished")
    return targets


# splice: the start of one attempt joined to the end of another attempt at the same task. The label follows the frames:
# progress of the first attempt up to the cut, of the second after it, and the outcome of the second. With a failed
# partner it is a good start that failed; with a successful one it is a success whose images do not belong together.


@negative("splice", uses_pool=True)
def splice(
    episode: Episode,
    rng: np.random.Generator,
    *,
    pool: Pool | None = None,
    partner: str | None = None,
    before: int | None = None,
    after: int | None = None,
) -> Episode:
    """Frames up to `before` of this episode, then frames from `after` on of the partner.

    The cut is drawn from the middle half; the partner continues at the same progress, as far as it is known.
    """
    targets = targets_of(episode, FEWEST_TO_SPLICE)
    other = _find_partner(episode, rng, pool, partner)
    ending = trusted_outcome(other)
    if ending is None:
        raise NotApplicable("no trusted source says how the partner ended")
    length = len(targets)
    before = pick(np.arange(length // 4, length * 3 // 4, dtype=np.int32), rng, before, None, "the cut")
    rest = _partner_curve(other, ending)
    after = _next_frame(targets, before, rest) if after is None else after
    if not 0 < after < len(rest):
        raise NotApplicable("the partner has no frames after the cut")
    views = _join_views(episode, other, before + 1, after)
    curve = np.concatenate([targets.curve[: before + 1], rest[after:]]).astype(np.float32)
    last = float(curve[-1])
    progress = ending.progress if np.isnan(last) else last
    grade = DONE_GRADE if ending.success else ending.grade
    if grade is None and progress is not None:
        grade = grade_of(progress)
    outcome = Outcome("edit", success=ending.success, progress=progress, grade=grade, curve=curve, by="splice")
    params = {"partner": other.id, "before": before, "after": after}
    return build_edited(episode, "splice", params, outcome, views=views)


def _find_partner(episode: Episode, rng: np.random.Generator, pool: Pool | None, id: str | None) -> Episode:
    if pool is None:
        raise NotApplicable("there is no pool to find a partner in")
    if id is not None:
        other = pool.find(id)
        if normalize_instruction(other.instruction) != normalize_instruction(episode.instruction):
            raise NotApplicable("the partner has another instruction")
        return other
    ended = [(other, trusted_outcome(other)) for other in pool.partners(episode)]
    partners = [(other, outcome) for other, outcome in ended if outcome is not None]
    if not partners:
        raise NotApplicable("there is no other attempt at its task in its split or group")
    failures = [other for other, outcome in partners if not outcome.success]
    choices = failures or [other for other, _ in partners]  # failures are rarer and more useful
    return choices[rng.integers(len(choices))]


def _partner_curve(other: Episode, outcome: Outcome) -> Floats32:
    """The partner's progress; unknown for a failure without a curve."""
    if outcome.success:
        return targets_of(other, FEWEST_TO_SPLICE).curve
    length = len(other)
    fits = outcome.curve is not None and len(outcome.curve) == length
    return outcome.curve if fits and outcome.curve is not None else np.full(length, np.nan, dtype=np.float32)


def _next_frame(targets: Targets, before: int, rest: Floats32) -> int:
    reached = np.flatnonzero(rest > targets.curve[before])
    if len(reached) and reached[0] > 0:
        return int(reached[0])
    # It never gets as far, or its progress is unknown: continue at the same share of its time.
    return int(np.ceil((before + 1) / len(targets) * len(rest)))


def _join_views(episode: Episode, other: Episode, stop: int, start: int) -> dict[str, Frames]:
    """Join every camera that both attempts have."""
    views = {}
    for camera, frames in episode.views.items():
        if camera not in other.views:
            continue
        partner = other.views[camera]
        kinds = {frames.source.kind, partner.source.kind}
        if frames.indices is not None or partner.indices is not None or "altered" in kinds:
            raise NotApplicable("one of the two is not a whole recording")
        if len(partner) != len(other):
            raise NotApplicable("the partner's cameras have different numbers of frames")
        if frames.take([0]).shape != partner.take([0]).shape:
            raise NotApplicable("the two have images of different sizes")
        views[camera] = Frames(SplicedFrames(((frames.source, 0, stop), (partner.source, start, len(partner)))))
    if not views:
        raise NotApplicable("the two have no camera in common")
    return views


# Edits of the instruction. The frames stay. The parameter `words` is the new instruction: edits record that name.


@negative("wrong-instruction", grades=(1,), uses_pool=True, assumes="that a video of one task shows nothing of another")
def wrong_instruction(
    episode: Episode,
    rng: np.random.Generator,
    *,
    pool: Pool | None = None,
    words: str | None = None,
    near: str = "as given",
) -> Episode:
    """Give a success another task's instruction: progress 0 at every frame, grade 1 (Robometer's negatives).

    The instruction comes from the same split, preferably from the same scene or about the same objects, and never asks
    for the same task.
    """
    require_success(episode)
    if not episode.instruction.strip():
        raise NotApplicable("it has no instruction")
    if words is None:
        drawn = pool.other_instruction(episode, rng, EASY) if pool is not None else None
        if drawn is None:
            raise NotApplicable("there is no other task in its split")
        words, near = drawn
    if same_task(words, episode.instruction):
        raise NotApplicable("the other instruction may ask for the same task")
    curve = np.zeros(len(episode), dtype=np.float32)
    outcome = Outcome("edit", success=False, progress=0.0, grade=1, curve=curve, by="wrong-instruction")
    return build_edited(episode, "wrong-instruction", {"words": words, "near": near}, outcome, instruction=words)


@negative("counterfactual", grades=UNFINISHED_GRADES)
def counterfactual(
    episode: Episode,
    rng: np.random.Generator,
    *,
    words: str | None = None,
    grade: int | None = None,
    model: str = "",
    prompts: str = "",
) -> Episode:
    """Give a success a command written for this video, of grade 1 to 4 (made by demerit relabel).

    The label source is "model"; progress stays unknown.
    """
    targets_of(episode)
    if words is None or grade is None:
        raise NotApplicable("a model writes its command and grade: use demerit relabel")
    if not words.strip() or grade not in UNFINISHED_GRADES:
        raise NotApplicable("it needs a command and a grade from 1 to 4")
    by = f"{model}, {prompts}" if prompts else model
    outcome = Outcome("model", success=False, grade=grade, by=by)
    params = {"words": words, "grade": grade, "model": model, "prompts": prompts}
    return build_edited(episode, "counterfactual", params, outcome, instruction=words)


@negative("reworded", grades=(DONE_GRADE,))
def reworded(
    episode: Episode,
    rng: np.random.Generator,
    *,
    words: str | None = None,
    was: str = "",
    model: str = "",
    prompts: str = "",
) -> Episode:
    """Replace a success's instruction by a corrected one of the same meaning. The outcomes stay."""
    targets_of(episode)
    if words is None or not words.strip():
        raise NotApplicable("it needs an instruction")
    params = {"words": words, "was": was or episode.instruction, "model": model, "prompts": prompts}
    variant = build_edited(episode, "reworded", params, Outcome("edit"), instruction=words)
    return replace(variant, outcomes=episode.labels)
