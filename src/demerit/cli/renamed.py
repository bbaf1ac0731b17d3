"""Spellings of earlier versions. They work for one more version; a sentence on stderr names the new spelling."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from demerit.errors import BadInput


def _as_settings(*names: str) -> dict[str, str]:
    return {f"--{name}": f"--set {name}=" for name in names}


# The old words: the new ones. {0} and {1} are the words that follow.
COMMANDS: Mapping[tuple[str, ...], str] = {
    ("materialize",): "export --to mp4",
    ("rewards", "write"): "export --model default",
    ("label",): "score {0} --write-labels --model rule:{1}",
    ("leaderboard",): "bench --leaderboard",
}
# The old option: the new one. `--set name=` takes the old option's value; without the = the old one was a flag.
# Nothing: the option and its value are left out.
EVERYWHERE = {"--strict": "--with strict=true", "--trust-pickles": "--with trust-pickles=true", "--cameras": "--camera"}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "bench": {
        "--as-recorded": "--set as-recorded=true",
        "--include-seen": "--set include-seen=true",
        **_as_settings("batch", "calibrate-on", "categories", "embed", "resamples"),
    },
    "build-corpus": {"--strict": "--strict"},
    "compare": {"--sheet": "--labels"},
    "detect": {"--false-alarms": "--risk"},
    "export": _as_settings("advantage", "ahead", "gamma", "kappa", "penalty", "reward", "tag"),
    "filter": {"--pictures": ""},
    "release": {"--format": "--to"},
    "relabel": _as_settings("more-tokens", "rounds", "seed", "size", "split"),
    "score": {"--out": "--rewards"},
    "serve": _as_settings("megabytes", "waiting", "live", "deadline"),
    "teach": _as_settings("seed"),
    "train": {"--corpus": "--prepared", "--metrics": "--log", "--network": "--from"},
    "watch": {"--out": "--rewards"},
}
REMOVED = {
    "--success-from": "--set success=model, the model's own verdict",
    "--threshold": "demerit calibrate, which gives a model a threshold with a promise",
    "--tls-cert": "--tls CERT KEY",
    "--tls-key": "--tls CERT KEY",
    "--validator-url": "the variable DEMERIT_VALIDATOR_URL",
    "--validator-model": "the variable DEMERIT_VALIDATOR_MODEL",
}


def translate_words(words: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Return the words of a command line in today's spelling; `say` gets a sentence for each that changed."""
    words = _translate_command(list(words), say)
    if not words:
        return words
    options = {**EVERYWHERE, **OPTIONS.get(words[0], {})}
    translated, rest = words[:1], words[1:]
    while rest:
        word = rest.pop(0)
        if word in ("--", "--while"):  # the words of another command follow
            return [*translated, word, *rest]
        name, equals, value = word.partition("=")
        if name in REMOVED:
            raise BadInput(name, REMOVED[name], "a spelling of an earlier version")
        new = options.get(name, name)
        if new == name:
            translated.append(word)
            continue
        today = f"now {new.removesuffix('=')}" if new else "no longer used"
        say(f"{name} is {today}; the old spelling ends with the next version.")
        option, _, setting = new.partition(" ")
        if setting and not setting.endswith("="):
            translated += [option, setting]
            continue
        value = value if equals else rest.pop(0) if rest else ""
        values = value.split(",") if name == "--cameras" else [f"{setting}{value}"]
        for part in values if new else ():
            translated += [option, part.strip()]
    return translated


def _translate_command(words: list[str], say: Callable[[str], None]) -> list[str]:
    for old, new in COMMANDS.items():
        if tuple(words[: len(old)]) != old:
            continue
        command, *more = new.split()
        rest, places = words[len(old) :], new.count("{")
        if {"-h", "--help"} & set(rest) or len(rest) < places:
            rest, more, places = ["--help"], [], 0
        elif command == "export":
            rest = _move_destination(rest)
            more = [] if {"-m", "--model"} & set(rest) else more
        now = [command, *(part.format(*rest) for part in more), *rest[places:]]
        say(f"demerit {' '.join(old)} is now: demerit {shlex.join(now)}")
        return now
    return words


def _move_destination(words: list[str]) -> list[str]:
    """Write what follows -o as the last word."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("-o", "--out"):
            count = 1 if equals else 2
            return [*words[:place], *words[place + count :], *([value] if equals else words[place + 1 : place + 2])]
    return words
