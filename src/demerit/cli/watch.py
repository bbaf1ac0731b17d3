"""The watch command."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from demerit.cli.bars import err, out, print_notes, print_verdicts
from demerit.cli.bundles import DatasetOptions, JsonOption, ModelOption, PortOption, RewardsOption
from demerit.data.episode import count_episodes
from demerit.data.files import write_atomic
from demerit.data.formats import open_dataset
from demerit.decide.detector import Detector
from demerit.decide.guarantee import describe_cut
from demerit.errors import BadInput, DemeritError, StoreError
from demerit.models import load_model
from demerit.use.watch.alarms import AlarmCondition, Webhook
from demerit.use.watch.figures import WatchPage, count_rate, count_verdicts, pick_to_watch
from demerit.use.watch.watcher import WatchedEpisode, Watcher
from demerit.web.media import EpisodeMedia
from demerit.web.server import WebServer

ALARM = 3
"""exit code of an alarm"""


def watch(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder that the robot writes to, or FORMAT:DIR.")],
    reading: DatasetOptions,
    model: ModelOption = "",
    detector: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A detector of demerit detect: it judges the episodes.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Score what is there and exit (for cron).")] = False,
    alarm: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Such as 'success<0.5 over 20'; repeatable (docs/watch.md)."),
    ] = None,
    webhook: Annotated[str, typer.Option(metavar="URL", help="Post alarms to this address, as JSON.")] = "",
    exit_on_alarm: Annotated[bool, typer.Option("--exit-on-alarm", help=f"Exit with {ALARM} on an alarm.")] = False,
    port: PortOption = 8020,
    metrics: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write /metrics to a file, for Prometheus' file collector.")
    ] = None,
    window: Annotated[int, typer.Option(metavar="N", min=1, help="Newest episodes that the page is about.")] = 200,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.05, help="Time between two looks.")] = 0.5,
    settle: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="A file unchanged for so long is complete.")
    ] = 1.0,
    rewards: RewardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score episodes as a robot writes them: live page, alarms.

    The page says which episodes to look at, how the success rate and the values develop, and what could not be scored.
    Every episode is scored once and stored as `demerit score` does; after a crash or a restart the watch goes on.

    [bold]Examples[/bold]

      demerit watch runs/ --model ./my-model --instruction "put the cup on the plate"
      demerit watch runs/ --alarm "success<0.5 over 20" --webhook https://chat.example/hook
      demerit watch lerobot:~/data/so101 --once --alarm "success<0.5 over 20" --exit-on-alarm
    """
    conditions, say = _read_alarms(alarm or [], detector is not None), err if as_json else out
    if not conditions and (webhook or exit_on_alarm):
        raise BadInput("--webhook" if webhook else "--exit-on-alarm", "an --alarm to act on", "none")
    judge = None if detector is None else Detector.load(detector)
    loaded = load_model(model or ("default" if judge is None else judge.model))
    if judge is not None:
        judge.check(loaded.card)
    news = list[WatchedEpisode]()
    watcher = Watcher(
        folder,
        loaded,
        partial(open_dataset, **reading.settings),
        out=rewards,
        detector=judge,
        settle=settle,
        on_scored=news.append,
    )
    with ExitStack() as stack:
        hook = stack.enter_context(_delivering(webhook)) if webhook else None
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="demerit-watch-", ignore_cleanup_errors=True))
        page = WatchPage(watcher, EpisodeMedia(cache), conditions, hook, window)
        if not once:
            server = stack.enter_context(WebServer(page.app(), port=port, grace=1))
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
            say.print(escape(f"Watching {folder} with {watcher.model.card.name}: {server.url} (Ctrl-C ends it)"))
        if rule := describe_cut(loaded) if judge is None else f"a failure where there is an alarm ({judge.guarantee})":
            say.print(escape(f"Verdict: {rule}"), soft_wrap=True)
        last_holds, problem, is_noted, last_news = set[str](), "", False, time.monotonic()
        while True:
            more = watcher.look()
            is_noted = is_noted or print_notes(watcher.state.notes)
            last_news = time.monotonic() if news else last_news
            _print_news(news, as_json)
            unwritten = "" if metrics is None else _write_metrics(page, metrics)
            problem, before = watcher.state.problem or unwritten, problem
            if problem not in ("", before):
                err.print(escape(f"demerit: {problem}"), soft_wrap=True)
            # A recording that goes on is for the next run.
            is_late = time.monotonic() - last_news > 2 * settle + every
            is_over = once and not more and (is_late or not _is_settling(watcher))
            if (news and not once) or is_over:
                holds = {condition.text for condition in conditions if condition.holds(watcher.state.rows)}
                for text in sorted(holds - last_holds):
                    _raise_alarm(watcher, text, window, hook)
                if exit_on_alarm and holds:
                    raise typer.Exit(ALARM)
                last_holds = holds
            news.clear()
            if is_over:
                break
            if not more:
                time.sleep(every)
        if problem:
            raise StoreError(folder, f"the last look failed ({problem.removesuffix('.')})")
        _print_summary(watcher, window, as_json)


def _read_alarms(texts: list[str], has_detector: bool) -> list[AlarmCondition]:
    conditions = [AlarmCondition.parse(text) for text in texts]
    for condition in conditions:
        if has_detector and condition.measure == "success":
            expected = (
                "no success with --detector, but failure, as in 'failure>0.5 over 20' (no alarm is not a success)"
            )
            raise BadInput("--alarm", expected, repr(condition.text))
    return conditions


def _write_metrics(page: WatchPage, path: Path) -> str:
    """Write the file; return why that failed. A full disk does not end a watch."""
    try:
        write_atomic(path, page.metrics().encode())
    except (DemeritError, OSError) as error:
        return str(error)
    return ""


def _is_settling(watcher: Watcher) -> bool:
    return any(reason == "still being written" for _, reason in watcher.state.waiting)


def _print_news(news: list[WatchedEpisode], as_json: bool) -> None:
    for row in news:
        if as_json:
            facts = {**asdict(row), **row.verdict.as_dict(), "success": row.success}
            print(json.dumps(facts, ensure_ascii=False, allow_nan=False), flush=True)
            continue
        value = "" if row.value is None else f"{row.value:.3f} "
        out.print(f"{time.strftime('%H:%M:%S')} {escape(f'{row.id}: {value}{row.verdict}')}")


def _raise_alarm(watcher: Watcher, text: str, window: int, hook: Webhook | None) -> None:
    rows = watcher.state.rows
    sentence = f"{watcher.root.name}: {text} (newest episode: {rows[-1].id})"
    err.print(f"[red]alarm[/red] {escape(sentence)}", soft_wrap=True)
    if hook is not None:
        to_watch = [row.id for row in pick_to_watch(rows[-window:])]
        hook.send({"text": f"demerit alarm: {sentence}", "condition": text, "episodes": len(rows), "watch": to_watch})


@contextmanager
def _delivering(url: str) -> Iterator[Webhook]:
    hook = Webhook(url)
    try:
        yield hook
    finally:
        hook.close()
        if losses := hook.sent - hook.delivered:
            err.print(escape(f"demerit: webhook at {hook.host}: {losses} not delivered ({hook.error})"), soft_wrap=True)


def _print_summary(watcher: Watcher, window: int, as_json: bool) -> None:
    state = watcher.state
    rows = state.rows[-window:]
    rate = count_rate(rows, watcher.outcome)
    picks = pick_to_watch(rows)
    if as_json:
        return
    out.print(f"{count_episodes(len(state.rows))}, {state.scored} scored now, {len(state.waiting)} waiting.")
    print_verdicts(count_verdicts(rows))
    if rate.n:
        out.print(f"{watcher.outcome.capitalize()}: {rate}.")
    if picks:
        out.print(escape(f"Of these {len(rows)}, watch these {len(picks)}: {', '.join(row.id for row in picks)}"))
    for id, reason in state.waiting:
        out.print(f"  [yellow]waiting[/yellow] {escape(f'{id}: {reason}')}")
