"""The report as one HTML file: what is in it and what is escaped."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from demerit.cli.bench import _build_leaderboard
from demerit.data.frames import Frames
from demerit.data.reward import Reward
from demerit.errors import BadInput, StoreError
from demerit.evaluate.metrics import Measure
from demerit.evaluate.metrics.verdict import ControlVerdict
from demerit.evaluate.reports import build_leaderboard, published_tables, write_page
from demerit.evaluate.reports.headline import lead
from demerit.evaluate.reports.page import render_report
from demerit.evaluate.reports.player import make_clips, pick_examples, playable
from demerit.evaluate.reports.report import (
    JUDGED_BY_MODELS,
    About,
    EpisodeLabels,
    MeasureLine,
    Report,
    ScoredUnder,
    Versus,
)
from demerit.models.protocol import example_card
from demerit.web.pages import keep_options
from fakes.coded_episodes import Unreadable
from fakes.page_fixture import make_report, shading_frames

Made = tuple[Report, dict[str, Frames]]
EVIL = """</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> "'&\u2028"""


class Elements(HTMLParser):
    """Collects start tags and the text of scripts, as a browser would split them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        self.tags.append((tag, facts))
        self.inside = (facts.get("id") or "main") if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[self.inside] = self.scripts.get(self.inside, "") + data


@pytest.fixture(scope="module")
def made() -> Made:
    return make_report(2)


@pytest.fixture(scope="module")
def text(made: Made) -> str:
    report, frames = made
    return render_report(report, frames, 6)


def test_pages_make_no_requests_and_run_only_their_script(text: str, tmp_path: Path) -> None:
    board = build_leaderboard([], tmp_path).read_text("utf-8")
    for page in (text, board):
        without_data = re.sub(r"[A-Za-z0-9+/=]{200,}", "", page)
        addresses = set(re.findall(r"""https?://[^\s"'<]+|url\([^)]*\)|@import""", without_data))
        assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address
        for tag, facts in Elements(page).tags:
            assert tag not in ("link", "iframe", "object", "embed", "base")
            for name in ("src", "href"):
                assert (facts.get(name) or "#").startswith(("#", "data:image/jpeg;base64,")), (tag, facts)
            assert not [name for name in facts if name.startswith("on")]
        script = page[page.rindex("<script>") + 8 : page.rindex("</script>")]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert "default-src 'none'" in page and f"script-src 'sha256-{digest}'" in page


def test_texts_from_a_dataset_are_escaped(made: Made) -> None:
    report, frames = made
    bad = replace(report.episodes[0], instruction=EVIL, note=EVIL, category=EVIL, vouched_by=EVIL)
    unread = Reward.unscored("careful", bad.id, EVIL)
    kept = [scored for scored in report.rewards if (scored.reward.model, scored.reward.episode) != ("careful", bad.id)]
    report = replace(
        report,
        about=replace(report.about, name=EVIL, claim=EVIL, data=EVIL),
        episodes=(bad, *report.episodes[1:]),
        rewards=(*kept, ScoredUnder(unread)),
        warnings=(EVIL,),
        verdicts={"careful": (EVIL,)},
        environment={EVIL: EVIL},
    )
    plain = Elements(render_report(*made, 2))
    evil = Elements(render_report(report, frames, 2))
    assert json.loads(evil.scripts["data"])["episodes"][0]["instruction"] == EVIL
    assert EVIL in json.loads(evil.scripts["data"])["reasons"]
    assert evil.scripts["main"] == plain.scripts["main"]  # no script more, none cut short
    assert [tag for tag, _ in evil.tags].count("script") == [tag for tag, _ in plain.tags].count("script")
    assert not [facts for tag, facts in evil.tags if tag == "img" and facts.get("src") == "x"]


def test_clip_shows_its_listed_frames(tmp_path: Path) -> None:
    frames = Frames.from_array(
        np.arange(200, dtype=np.uint8)[:, None, None, None].repeat(301, 1).repeat(500, 2).repeat(3, 3)
    )
    episode = EpisodeLabels("long", "", "", "", "", frames=200, seconds=20.0)
    clip = make_clips([episode], {"long": frames})["long"]
    assert (len(clip.at), clip.at[0], clip.at[-1]) == (64, 0, 199)
    assert (clip.width, clip.height) == (240, 144)
    assert clip.speed == pytest.approx(clip.fps / (63 / 19.9), abs=0.01)
    file = tmp_path / "clip.mp4"
    file.write_bytes(base64.b64decode(clip.video))
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        for k, frame in enumerate(container.decode(stream)):
            assert frame.time == pytest.approx(k / clip.fps, abs=1e-3)
            assert abs(int(frame.to_ndarray(format="rgb24")[60, 100, 0]) - clip.at[k]) <= 3
    assert k == 63


def test_unusable_video_has_a_problem(made: Made) -> None:
    report, frames = made
    first, second = (pick.episode.id for pick in pick_examples(report, 2))
    broken = {**frames, first: shading_frames(9), second: Frames(Unreadable("gone.mp4", 32))}
    scripts = Elements(render_report(report, broken, 3)).scripts
    rows = {row["id"]: row for row in json.loads(scripts["data"])["episodes"]}
    assert "9 frames" in rows[first]["problem"] and "32" in rows[first]["problem"]
    assert "broken on purpose" in rows[second]["problem"]
    assert "clip" not in rows[first]
    assert sum(name.startswith("clip-") for name in scripts) == 1  # of the three that were wanted
    with pytest.raises(BadInput, match="embed"):
        write_page(report, "nowhere.html", frames, -1)


def test_mistakes_are_picked_first(made: Made) -> None:
    report, _ = made
    chosen = pick_examples(report, 100)
    assert len(chosen) == len(report.episodes) == len({pick.index for pick in chosen})
    assert [pick.kind for pick in chosen[:2]] == ["over", "over"]
    for pick in chosen:
        assert {"over": False, "under": True}.get(pick.kind, pick.episode.success) is pick.episode.success


def test_page_numbers_match_the_report(made: Made, text: str) -> None:
    report, _ = made
    data, curves = (json.loads(Elements(text).scripts[name]) for name in ("data", "curves"))
    for m, card in enumerate(report.cards):
        rewards = report.rewards_of(card.name)
        for i, episode in enumerate(report.episodes):
            shown, exact = data["episodes"][i]["final"][m], rewards[episode.id].final
            assert (shown is None) == math.isnan(exact)
            assert shown is None or shown == pytest.approx(exact, abs=1e-3)
            curve = curves[i]["curves"][m]
            if curve is not None:
                at = rewards[episode.id].at if curve[0] == 0 else np.array(curve[0])
                assert np.array_equal(at, rewards[episode.id].at)
                values = np.array([math.nan if value is None else value for value in curve[1]])
                assert np.allclose(values, rewards[episode.id].value, atol=6e-4, equal_nan=True)


def tiny(low: float, high: float, control: float | None = 0.5, **changes: Any) -> Report:
    lines = [MeasureLine("mine", Measure("auroc", 0.8, 0.7, 0.9, 10, 0, clusters=10))]
    cards, decided = [example_card(name="mine")], []
    if control is not None:
        lines.append(MeasureLine("clock", Measure("auroc", control, control, control, 10, 0)))
        cards.append(example_card(name="clock"))
        answer = "better" if low > 0 else "not better" if high <= 0 else "no evidence yet"
        facts = ("clock", 0.8, control, 0.8 - control, low, high, 1, 10)
        decided = [replace(ControlVerdict("mine", "auroc", answer, *facts), **changes)]  # type: ignore[arg-type]
    controls = ("clock",) * (len(cards) - 1)
    row = EpisodeLabels("one", "", "", "", "", success=True)
    about = About("tiny@1", "Nothing.")
    return Report(about, tuple(cards), controls, (row,), lines=tuple(lines), decisions=tuple(decided))


def test_the_conclusion_follows_the_verdict() -> None:
    assert lead(tiny(0.2, 0.4)).trusted == "mine"
    nothing = replace(tiny(0.2, 0.4), lines=(), decisions=())
    doubtful = {
        "no evidence": tiny(-0.1, 0.4, more=20),
        "not better": tiny(-0.4, -0.1),
        "no interval": tiny(math.nan, math.nan),
        "the clock wins by construction": tiny(0.2, 0.4, by_construction="clock"),
        "no controls": tiny(0.2, 0.4, None),
        "nothing measured": nothing,
        "only controls": replace(nothing, cards=nothing.cards[1:]),
        "labels of models": replace(tiny(0.2, 0.4), environment={JUDGED_BY_MODELS: "1"}),
    }
    assert {why: lead(report).trusted for why, report in doubtful.items()} == dict.fromkeys(doubtful, "")
    assert "20 more" in lead(doubtful["no evidence"]).text
    assert len({lead(report).title for report in doubtful.values()}) == len(doubtful) - 1  # no interval, no evidence


def test_an_old_report_is_decided_by_its_comparison_with_the_best_control() -> None:
    old = replace(tiny(0.2, 0.4), decisions=())
    assert old.verdict("mine", "auroc") is None
    for ends, answer in (((0.2, 0.4), "better"), ((-0.1, 0.4), "no evidence yet"), ((-0.4, -0.1), "not better")):
        compared = replace(old, comparisons=(Versus("mine", "clock", "auroc", 0.3, *ends, 0.01, 0.01, 10),))
        verdict = compared.verdict("mine", "auroc")
        assert verdict is not None and verdict.answer == answer
        assert (lead(compared).trusted == "mine") == (answer == "better")


def test_empty_reports_still_have_a_page(tmp_path: Path) -> None:
    for report in (tiny(0.2, 0.4), Report(About("none@1", "Nothing."), (), (), ())):
        assert "</html>" in write_page(report, tmp_path / "page.html").read_text("utf-8")


def test_remote_videos_are_not_linked() -> None:
    for address in ("videos/one.mp4", "data:video/mp4;base64,AAAA", "file:///tmp/a.mp4", "/tmp/a:b.mp4"):
        assert playable(address) == address
    for address in ("https://example.org/a.mp4", "//example.org/a.mp4", "javascript:alert(1)", "data:text/html,x"):
        assert playable(address) == ""


def test_published_and_measured_never_share_a_table(made: Made, tmp_path: Path) -> None:
    page = build_leaderboard([made[0]], tmp_path / "site").read_text("utf-8")
    measured, published = page.split('<section id="published">')
    assert 'class="headline"' in measured and 'class="headline"' not in published
    assert 'class="published"' not in measured
    for table in published_tables():
        part = published.split(f'id="{table.name}"')[1].split("</article>")[0]
        assert f"Source: {table.source}" in part.replace("&#39;", "'")
        assert ("approximate</span>" in part) == table.approximate
        assert part.count('scope="row"') == len(table.models)


def test_options_in_a_sentence_stay_on_one_line_and_the_rest_is_escaped() -> None:
    text = keep_options("<b> ask for --risk 0.17. It -- or --as-recorded, no-one")
    assert re.findall(r'<span class="option">(.*?)</span>', text) == ["--risk 0.17", "--as-recorded"]
    assert re.sub(r"</?span.*?>", "", text) == "&lt;b&gt; ask for --risk 0.17. It -- or --as-recorded, no-one"
    assert keep_options("the column `a<b`, or `") == "the column <code>a&lt;b</code>, or `"


def test_leaderboard_command_takes_files_and_folders(made: Made, tmp_path: Path) -> None:
    made[0].write(tmp_path / "report.json")
    _build_leaderboard([tmp_path, tmp_path / "report.json"], tmp_path / "site")
    assert (tmp_path / "site" / "index.html").read_text("utf-8").count('<table class="headline"') == 2
    with pytest.raises(StoreError, match="missing"):
        _build_leaderboard([tmp_path / "missing.json"], tmp_path / "site")


def test_a_model_that_is_not_trusted_yet_is_better_and_not_to_be_trusted(made: Made) -> None:
    report, _ = made
    assert lead(report).title == "Trust careful most here"

    def warn(scored: ScoredUnder) -> ScoredUnder:
        return replace(scored, reward=replace(scored.reward, given={"caution": "Label about 10 more"}))

    rewards = tuple(warn(one) if one.reward.model == "careful" else one for one in report.rewards)
    warned = replace(report, rewards=rewards)
    assert lead(warned).title == "careful is better than every control" and not lead(warned).trusted
    assert set(warned.cautions) - set(report.cautions) == {"careful: model not yet trusted: Label about 10 more"}


def test_unfamiliar_episodes_are_marked(made: Made, tmp_path: Path) -> None:
    report, _ = made
    far = {row.id for row in report.episodes[::2]}

    def mark(scored: ScoredUnder, figure: float) -> ScoredUnder:
        return replace(scored, reward=replace(scored.reward, given={"familiarity": figure}))

    def marked(share: frozenset[str] | set[str]) -> Report:
        rewards = [
            mark(one, 0.001 if one.reward.episode in share else 0.4) if one.reward.model == "careful" else one
            for one in report.rewards
        ]
        return replace(report, rewards=tuple(rewards))

    few, most = marked({report.episodes[0].id}), marked({row.id for row in report.episodes[1:]})
    half = marked(far)
    assert half.guesses == {"careful": len(far)} and few.guesses == {}
    assert len(half.cautions) == len(report.cautions) + 1 and few.cautions == report.cautions
    assert [one.is_guess("careful") for one in (few, most)] == [False, True] and not most.is_guess("eager")
    half.write(tmp_path / "report.json")
    assert Report.read(tmp_path / "report.json").guesses == half.guesses
    place = str([card.name for card in report.cards].index("careful"))
    rows = json.loads(Elements(render_report(half, {}, 0)).scripts["data"])["episodes"]
    assert {row["id"] for row in rows if "guess" in row} == far
    assert all(row["guess"] == {place: 0.001} for row in rows if row["id"] in far)
    assert ">a guess</span>" in render_report(most, {}, 0) and ">a guess</span>" not in render_report(few, {}, 0)
