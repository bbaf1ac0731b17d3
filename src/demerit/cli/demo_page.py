"""The demo's report: a headline, film strips with rewards drawn under the frames, and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from demerit.data.arrays import Floats32
from demerit.data.files import write_atomic
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.evaluate.metrics import Measure
from demerit.evaluate.reports.headline import Lead, headline, lead
from demerit.evaluate.reports.page import model_styles, player_parts
from demerit.evaluate.reports.player import LISTED, pick_examples
from demerit.evaluate.reports.reel import FilmReel, ReelCurve
from demerit.evaluate.reports.report import EpisodeLabels, Report
from demerit.training.teach.trust import TrustAnswer
from demerit.web.pages import render

TAUGHT, UNTAUGHT = "taught", "default"
CUE = "change"
"""the control named in the headline: it sees the images but does not know the task"""
DRAWN = (CUE, "clock", UNTAUGHT, TAUGHT)
"""models drawn under a strip, back to front"""
TEMPLATE = "demo.html.j2"
TRUTH = "truth"
"""the style of the true progress"""


def write_demo_page(report: Report, taught: Report, summary: Lead, path: Path, frames: Mapping[str, Frames]) -> None:
    """Write the page atomically.

    Args:
        report: about the scored episodes.
        taught: about the taught episodes.
        summary: the first lines.
        path: the file; its folder must exist.
        frames: the scored episodes' videos.
    """
    styles = model_styles(report)
    outcomes = Counter(episode.success for episode in report.episodes)
    facts = [
        f"{len(taught.episodes)} episodes taught",
        f"{len(report.episodes)} others scored: {outcomes[True]} successes, {outcomes[False]} failures",
        "labels measured by the simulator",
        "a task that the untaught network was not trained on",
    ]
    page = render(
        TEMPLATE,
        **player_parts(report, pick_examples(report, LISTED), frames, LISTED),
        lead=summary,
        facts=facts,
        table=headline(report),
        strips=make_strips(report, frames),
        looks={TRUTH: TRUTH, **{name: style["css"] + " front" * (name == TAUGHT) for name, style in styles.items()}},
        drawn=[name for name in reversed(DRAWN) if name in styles],
        home=path.resolve().parent.parent.name,
        taught_page=f"../{TAUGHT}/report.html",
    )
    write_atomic(path, page.encode())


def describe_demo(report: Report, taught: Report, answer: TrustAnswer) -> Lead:
    """Describe what teaching changed and which model to trust: the taught one only if its rewards do not warn."""
    summary = lead(report)
    ours, before, cue = (report.line(name, "auroc") for name in (TAUGHT, UNTAUGHT, CUE))
    if ours is None or not ours.known:
        return summary
    labels, outcomes = (Counter(episode.success for episode in part.episodes) for part in (taught, report))
    text = (
        f"Taught with {labels[True]} successes and {labels[False]} failures, it scored {len(report.episodes)} episodes "
        f"that it had never seen. Of a success and a failure it ranks the success higher in {_percent(ours)} of "
        f"{outcomes[True] * outcomes[False]} pairs. The same network untaught: {_percent(before)}. How much the image "
        f"changed: {_percent(cue)}. A coin: 50%. Is it good enough, by the {len(taught.episodes)} it was taught with? "
        f"{answer.title}."
    )
    title = summary.title
    if summary.answer == "better" and before is not None and ours.value > before.value:
        title = f"{len(taught.episodes)} examples took it from {_percent(before)} to {_percent(ours)} of pairs right"
    return replace(summary, title=title, text=text)


def _percent(measure: Measure | None) -> str:
    return f"{measure.value:.0%}" if measure is not None and measure.known else "unknown"


def make_strips(report: Report, frames: Mapping[str, Frames]) -> list[dict[str, Any]]:
    """Choose the episodes to show and draw them."""
    picked = [(title, episode) for title, episode in choose_episodes(report) if episode.id in frames]
    return [{"title": title, **_make_strip(report, episode, frames[episode.id])} for title, episode in picked]


def choose_episodes(report: Report) -> list[tuple[str, EpisodeLabels]]:
    """Choose four: a success, one that was undone, one that achieved nothing, and the worst prediction."""
    rewards = report.rewards_of(TAUGHT)
    rated = {
        episode.id: (episode, episode.curve, _mean_error(rewards[episode.id], episode.curve))
        for episode in report.episodes
        if episode.curve is not None and len(episode.curve) and episode.id in rewards and rewards[episode.id].scored
    }
    picked: list[tuple[str, EpisodeLabels]] = []

    def pick(title: str, success: bool | None, rank: Callable[[EpisodeLabels, Floats32, float], Any]) -> None:
        """Move the first by rank out of the rated ones; `success` None = any."""
        wanted = [entry for entry in rated.values() if success is None or entry[0].success is success]
        if wanted:
            best = min(wanted, key=lambda entry: rank(*entry))[0]
            picked.append((title, best))
            del rated[best.id]

    pick("Done: the reward climbs", True, lambda episode, curve, error: (len(episode.events), error))
    pick("Done, then undone: it climbs and falls", False, lambda _, curve, error: curve[-1] - np.nanmax(curve))
    pick("Nothing achieved: it stays low", False, lambda _, curve, error: np.nanmax(curve))
    pick("Where it is furthest off", None, lambda _, curve, error: -error)
    return picked


def _mean_error(reward: Reward, truth: Floats32) -> float:
    """Mean distance of rewards from the measured progress."""
    return float(np.nanmean(np.abs(reward.value - truth[reward.at])))


def _make_strip(report: Report, episode: EpisodeLabels, frames: Frames) -> dict[str, Any]:
    """Return the episode, its film with rewards, truth and marks, and the final values."""
    rewards = {model: report.rewards_of(model).get(episode.id) for model in DRAWN}
    scored = {model: reward for model, reward in rewards.items() if reward is not None and reward.scored}
    curves: dict[str, ReelCurve] = {}
    if episode.curve is not None:
        curves[TRUTH] = np.arange(len(episode.curve)), episode.curve
    curves |= {model: (reward.at, reward.value) for model, reward in scored.items()}
    return {
        "episode": episode,
        "reel": FilmReel.draw(frames, curves, episode.events),
        "finals": {model: float(reward.final) for model, reward in scored.items()},
    }
