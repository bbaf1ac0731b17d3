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

from demerit.cli.bars import err, out
from demerit.cli.options import CameraOption, InstructionOption, SourceOptions, reader_options
from demerit.cli.scoring import OneModelOption
from demerit.data.episode import count_episodes
from demerit.data.files import write_atomic
from demerit.data.formats import open_dataset
from demerit.errors import BadInput, DemeritError, StoreError
from demerit.models import load_model
from demerit.use.detect import Detector
from demerit.use.view.media import EpisodeMedia
from demerit.use.view.server import LocalServer
from demerit.use.watch.alarms import AlarmCondition, Webhook
from demerit.use.watch.figures import WatchPage, pick_to_watch, success_rate
from demerit.use.watch.watcher import WatchedEpisode, Watcher

ALARM = 3
"""exit code of an alarm"""


def watch(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder that the robot writes to, or FORMAT:DIR.")],
    model: OneModelOption = "",
    detector: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A detector of demerit detect: it judges the episodes.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(metavar="V", help="A final value from V on is a success (default: the model says).")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Score what is there and exit (for cron).")] = False,
    alarm: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Such as 'success<0.5 over 20'; repeatable (docs/watch.md)."),
    ] = None,
    webhook: Annotated[str, typer.Option(metavar="URL", help="Post alarms to this address, as JSON.")] = "",
    exit_on_alarm: Annotated[bool, typer.Option("--exit-on-alarm", help=f"Exit with {ALARM} on an alarm.")] = False,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port of the page; 0 = a free one.")] = 8020,
    metrics: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write /metrics to a file, for Prometheus' file collector.")
    ] = None,
    window: Annotated[int, typer.Option(metavar="N", min=1, help="Newest episodes that the page is about.")] = 200,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.05, help="Time between two looks.")] = 0.5,
    settle: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="A file unchanged for so long is complete.")
    ] = 1.0,
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the rewards (default: next to the dataset).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line per episode, and nothing else.")] = False,
    instruction: InstructionOption = "",
    camera: CameraOption = None,
    options: SourceOptions = None,
) -> None:
    """Score episodes as a robot writes them, with a live page, metrics and alarms.

    The page says which episodes to look at, how the success rate and the values develop, and what could not be scored.
    Every episode is scored once and stored as `demerit score` does; after a crash or a restart the watch goes on.

    [bold]Examples[/bold]

      demerit watch runs/ --model ./my-model --instruction "put the cup on the plate"
      demerit watch runs/ --alarm "success<0.5 over 20" --webhook https://chat.example/hook
      demerit watch lerobot:~/data/so101 --once --alarm "success<0.5 over 20" --exit-on-alarm
    """
    conditions, say = [AlarmCondition.parse(text) for text in alarm or ()], err if as_json else out
    if not conditions and (webhook or exit_on_alarm):
        raise BadInput("--webhook" if webhook else "--exit-on-alarm", "an --alarm to act on", "none")
    judge = None if detector is None else Detector.load(detector)
    loaded = load_model(model or ("default" if judge is None else judge.model))
    if judge is not None:
        judge.check(loaded.card)
    given = {"camera": camera, **reader_options(options, False, instruction)}
    news = list[WatchedEpisode]()
    watcher = Watcher(
        folder,
        loaded,
        partial(open_dataset, **given),
        out=out_folder,
        detector=judge,
        threshold=threshold,
        settle=settle,
        on_scored=news.append,
    )
    with ExitStack() as stack:
        hook = stack.enter_context(_delivering(webhook)) if webhook else None
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="demerit-watch-", ignore_cleanup_errors=True))
        page = WatchPage(watcher, EpisodeMedia(cache), conditions, hook, window)
        if not once:
            server = stack.enter_context(LocalServer(page.routes(), port=port))
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
            say.print(escape(f"Watching {folder} with {watcher.model.card.name}: {server.url} (Ctrl-C ends it)"))
        held, problem, last_news = set[str](), "", time.monotonic()
        while True:
            more = watcher.look()
            last_news = time.monotonic() if news else last_news
            _print_news(news, as_json)
            unwritten = "" if metrics is None else _write_metrics(page, metrics)
            problem, said = watcher.state.problem or unwritten, problem
            if problem not in ("", said):
                err.print(escape(f"demerit: {problem}"), soft_wrap=True)
            # A recording that goes on is for the next run.
            is_late = time.monotonic() - last_news > 2 * settle + every
            is_over = once and not more and (is_late or not _is_settling(watcher))
            if (news and not once) or is_over:
                holds = {one.text for one in conditions if one.holds(watcher.state.rows)}
                for text in sorted(holds - held):
                    _raise_alarm(watcher, text, window, hook)
                if exit_on_alarm and holds:
                    raise typer.Exit(ALARM)
                held = holds
            news.clear()
            if is_over:
                break
            if not more:
                time.sleep(every)
        if problem:
            raise StoreError(folder, f"the last look failed ({problem.removesuffix('.')})")
        _print_summary(watcher, window, as_json)


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
            print(json.dumps(asdict(row), ensure_ascii=False, allow_nan=False), flush=True)
            continue
        verdict = {True: "success", False: "[red]failure[/red]", None: "scored"}[row.success]
        said = f"[yellow]unscored[/yellow]: {escape(row.unscored)}" if row.unscored else f"{row.value:.3f} {verdict}"
        guess = " [yellow](a guess: unlike all that the model learned from)[/yellow]" if row.is_guess else ""
        out.print(f"{time.strftime('%H:%M:%S')} {escape(row.id)}: {said}{guess}")


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
        if lost := hook.sent - hook.delivered:
            err.print(escape(f"demerit: webhook {url}: {lost} not delivered ({hook.error})"), soft_wrap=True)


def _print_summary(watcher: Watcher, window: int, as_json: bool) -> None:
    state = watcher.state
    rows = state.rows[-window:]
    rate, judged = success_rate(rows)
    picks = pick_to_watch(rows)
    if as_json:
        return
    out.print(f"{count_episodes(len(state.rows))}, {state.scored} scored now, {len(state.waiting)} waiting.")
    if judged:
        out.print(f"Success: {rate.show('%')}, of {judged}.")
    if picks:
        out.print(escape(f"Of these {len(rows)}, watch these {len(picks)}: {', '.join(row.id for row in picks)}"))
    for id, reason in state.waiting:
        out.print(f"  [yellow]waiting[/yellow] {escape(f'{id}: {reason}')}")
