"""The judge command: a simulation of a vision-language model, for trying things out without one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demerit.episode import Episode
    from demerit.judge.temperament import Temperament
    from demerit.judge.truth import SimulatedJudge

USUAL_PORT = 8765


def judge(
    datasets: Annotated[
        list[str],
        typer.Argument(metavar="DATASET", help="Simulated episodes whose measured progress it answers from."),
    ],
    port: Annotated[int, typer.Option(help="Where to listen on this machine; 0 = any free port.")] = USUAL_PORT,
    optimism: Annotated[float, typer.Option(help="How far failures are pushed up, 0 to 1.")] = 0.5,
    blind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=SHARE", help="How far a kind of failure is overlooked, e.g. 'dropped=0.9'."),
    ] = None,
    noise: Annotated[float, typer.Option(help="Standard deviation of each answer.")] = 0.08,
    latency: Annotated[float, typer.Option(help="Seconds that every answer takes.")] = 0.0,
    faults: Annotated[
        float, typer.Option(help="Share of requests that go wrong: time out, 429, 500, nonsense ...")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Decides the noise and the faults.")] = 0,
) -> None:
    """Serve a [bold]simulated[/bold] judge: speaks the chat-completions protocol, answers from a simulator's truth.

    It is no model. It shows that prompts, context, caching and reports work end to end; what it scores says nothing
    about any real model. Stop it with Ctrl-C.

    [bold]Examples[/bold]

      demerit judge rollouts --port 8765
      DEMERIT_CHAT_URL=http://127.0.0.1:8765/v1 DEMERIT_CHAT_MODEL=simulated-judge demerit score rollouts --model gvl
    """
    from demerit.judge.temperament import Temperament  # noqa: PLC0415

    known = Temperament().blind
    temperament = Temperament(optimism=optimism, blind={**known, **_shares(blind or [])}, noise=noise)
    _serve(_made(datasets, temperament, seed), port, latency, faults, seed)


def _made(datasets: list[str], temperament: Temperament, seed: int) -> SimulatedJudge:
    from demerit.cli.bars import bar, out  # noqa: PLC0415
    from demerit.judge.truth import SimulatedJudge  # noqa: PLC0415
    from demerit.sources import open_dataset  # noqa: PLC0415

    opened = [open_dataset(one) for one in datasets]
    with bar("looking at every frame once", sum(one.expected() or 0 for one in opened) or None) as shown:

        def watched() -> Iterator[Episode]:
            for count, episode in enumerate((episode for dataset in opened for episode in dataset), 1):
                yield episode
                shown.update(count, "")

        judge = SimulatedJudge(watched(), temperament, seed)
    left = len(judge.album.left_out)
    out.print(f"{len(judge.album)} episodes known" + (f"; {left} left out: no measured progress" if left else ""))
    return judge


def _serve(judge: SimulatedJudge, port: int, latency: float, faults: float, seed: int) -> None:
    from demerit.cli.bars import out  # noqa: PLC0415
    from demerit.errors import BadInput  # noqa: PLC0415
    from demerit.judge.faults import Faults  # noqa: PLC0415
    from demerit.judge.server import ScriptedServer  # noqa: PLC0415
    from demerit.judge.truth import NAME  # noqa: PLC0415

    wrong = Faults.everything(faults, seed) if faults else None
    try:
        server = ScriptedServer(judge, wrong, latency=latency, models=(NAME,), port=port)
    except OSError as error:
        raise BadInput("--port", "a free port (0 = any)", f"{port}: {error.strerror}") from error
    with server:
        out.print("A simulation, no model: it answers from what the simulator measured, made wrong on purpose.")
        out.print(f"export DEMERIT_CHAT_URL={server.url} DEMERIT_CHAT_MODEL={NAME}", soft_wrap=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            out.print(
                f"{server.billed.total()} answers to {len(server.billed)} questions; {server.faulted.total()} faults"
            )


def _shares(pairs: list[str]) -> dict[str, float]:
    from demerit.errors import BadInput  # noqa: PLC0415

    shares = {}
    for pair in pairs:
        kind, _, share = pair.rpartition("=")
        try:
            shares[kind] = float(share)
        except ValueError:
            kind = ""
        if not kind:
            raise BadInput("--blind", "KIND=SHARE, for example 'dropped=0.9'", repr(pair))
    return shares
