"""The tree of errors.

    DemeritError
      UnknownName(kind, name, known)       a name that is not registered
      MissingExtra(feature, extra)         a feature whose dependencies are not installed
      BadInput(what, expected, got)        an argument, option or file that cannot be used
      BadEpisode(episode, expected, got)   an episode that breaks a rule
      BadReward(model, episode, reason)    a reward that breaks a rule
      UnscoredFrames(model, frames, ...)   frames without a value where each needs one
      UnreadableVideo(path, reason)        frames that cannot be decoded
      NotApplicable(reason)                an edit that does not fit this episode
      WeightsMismatch(missing, unexpected) weights that do not fit the model
      NonFiniteOutput()                           a model output that is NaN or infinite
      OutOfMemory(what, detail)            not enough memory
      ContractBroken(model, clauses)       a model that fails its conformance check
      RemoteError(url, status, message)    a reward server that answered with an error, or not
      WriteError(path, reason, kept)       a file that cannot be written
      Diverged(update, found, kept)        training that reached NaN or infinity
      StoreError(path, reason)             a dataset folder that cannot be read or written
        StoreBusy(path, holder)            ... because another process writes to it
        StaleRewards(path, episode)        rewards of an episode or a model that has changed since

Each constructor takes facts, keeps them as attributes and writes one sentence: what was given, what is allowed, what is
meant. The command line prints that sentence and exits with 1. A `DemeritWarning` is printed too, and the
command continues. `StoppedByUser` is a Ctrl-C that says what was saved.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence
from pathlib import Path

WRITE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO})
"""errno values that mean a file cannot be written"""
TORCH = frozenset({"train", "vlm", "vlm-train"})
"""extras that install torch"""


class DemeritError(Exception):
    """The root of the tree: catch it to catch every error that demerit raises on purpose."""


class DemeritWarning(UserWarning):
    """The root of the warnings: printed as one sentence; the command continues."""


class AmbiguityWarning(DemeritWarning):
    """The input is ambiguous. The message describes how it was read."""


class PerformanceWarning(DemeritWarning):
    """The work is slower than it could be. The message gives the reason."""


class StoppedByUser(KeyboardInterrupt):
    """A Ctrl-C. The message describes what was saved and how to resume."""


class UnknownName(DemeritError):
    """A name that is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """`known` are the names that exist; the nearest one is suggested."""
        self.kind, self.name, self.known = kind, name, sorted(known)
        near = difflib.get_close_matches(name, self.known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listing = ", ".join(self.known) or "none"
        super().__init__(f"There is no {kind} named {name!r}.{hint} Known: {listing}.")


class MissingExtra(DemeritError):
    """A feature whose dependencies are not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        """`extra` is the extra to install."""
        self.feature, self.extra = feature, extra
        first = " Install a CPU build of torch first, else pip downloads gigabytes of CUDA." if extra in TORCH else ""
        super().__init__(
            f"{feature} needs the extra {extra!r}: pip install -e '.[{extra}]' in a clone, or "
            f"pip install 'demerit[{extra}] @ git+URL' (docs/install.md).{first}"
        )


class BadInput(DemeritError):
    """An argument, an option or a file that cannot be used."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        """`what` names the input; `expected` and `got` describe it."""
        self.what, self.expected, self.got = what, expected, got
        super().__init__(f"{what}: expected {expected}, got {_shorten(got).removesuffix('.')}.")


class BadEpisode(DemeritError):
    """An episode that breaks a rule."""

    def __init__(self, episode: str, expected: str, got: object) -> None:
        """`episode` is the id; `expected` is the rule."""
        self.episode, self.expected, self.got = episode, expected, got
        super().__init__(f"Episode {_shorten(repr(episode))}: expected {expected}, got {_shorten(got)}.")


class BadReward(DemeritError):
    """A reward that breaks a rule."""

    def __init__(self, model: str, episode: str, reason: str) -> None:
        """`reason` names the rule."""
        self.model, self.episode, self.reason = model, episode, reason
        super().__init__(
            f"Model {model!r} gave an unusable reward for episode {episode!r}: {reason.removesuffix('.')}."
        )


class UnscoredFrames(DemeritError):
    """Frames without a value, where a trainer needs a number for each."""

    def __init__(self, model: str, frames: int, episodes: int, of: int, example: str) -> None:
        """`episodes` is the number of episodes with such frames, `of` that of all; `example` is one with its reason."""
        self.model, self.frames, self.episodes, self.of = model, frames, episodes, of
        super().__init__(
            f"Model {model!r} gave no value to {frames} frames in {episodes} of {of} episodes, "
            f"e.g. {_shorten(example).removesuffix('.')}. Choose: --unscored interpolate, drop-episode or weight-zero."
        )


class UnreadableVideo(DemeritError):
    """Frames that cannot be decoded."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """`reason` is what the decoder reported."""
        self.path, self.reason = str(path), reason
        super().__init__(f"{path}: {reason}.")

    def __reduce__(self) -> tuple[type[UnreadableVideo], tuple[str, str]]:
        """Pickle with both facts; the default would keep only the sentence."""
        return (type(self), (self.path, self.reason))


class NotApplicable(DemeritError):
    """An edit that does not fit this episode. Jobs count these by reason."""

    def __init__(self, reason: str) -> None:
        """`reason` is counted and shown."""
        self.reason = reason
        super().__init__(reason)


class WeightsMismatch(DemeritError):
    """Weights that do not fit the model."""

    def __init__(self, missing: Sequence[str], unexpected: Sequence[str], hint: str = "") -> None:
        """`hint` tells where the weights come from and what to do."""
        self.missing, self.unexpected = list(missing), list(unexpected)
        sentence = f"The weights do not fit: {_some('missing', missing)}; {_some('unexpected', unexpected)}."
        super().__init__(f"{sentence} {hint}".rstrip())


class NonFiniteOutput(DemeritError):
    """The model output is NaN or infinite."""

    def __init__(self) -> None:
        """The sentence is also the reason of single unscored frames."""
        super().__init__("the network gave no number there")


class OutOfMemory(DemeritError):
    """Not enough memory on this machine."""

    def __init__(self, what: str, detail: str) -> None:
        """`what` is the work, `detail` the message of the allocator."""
        self.what, self.detail = what, detail
        advice = "Use a smaller batch, bfloat16 or a smaller model, or stop other work on the device"
        super().__init__(f"{what} ran out of memory ({detail}). {advice}.")


class ContractBroken(DemeritError):
    """A model that does not do what its card and the protocol say."""

    def __init__(self, model: str, clauses: Sequence[str]) -> None:
        """`clauses` are the failed checks."""
        self.model, self.clauses = model, list(clauses)
        super().__init__(f"Model {model!r} breaks its contract: {'; '.join(clauses)}.")


class RemoteError(DemeritError):
    """A reward server answered with an error."""

    def __init__(self, url: str, status: int, message: str) -> None:
        """`status` is the HTTP status; 0 = no answer."""
        self.url, self.status, self.message = url, status, message
        super().__init__(f"{url} {f'answered {status}' if status else 'cannot be reached'}: {message}.")


class WriteError(DemeritError):
    """A file that cannot be written: the disk is full or permission is missing."""

    def __init__(self, path: str | Path, reason: str, kept: str) -> None:
        """`kept` describes what was saved."""
        self.path, self.reason, self.kept = str(path), reason, kept
        super().__init__(f"{path}: cannot write ({reason}). {kept}")


class Diverged(DemeritError):
    """Training that reached NaN or infinity. It stops and exports nothing."""

    def __init__(self, update: int, found: str, kept: str, rate: str = "rate") -> None:
        """`kept` describes what was saved; `rate` is the name of the learning rate in the config."""
        self.update, self.found, self.kept = update, found, kept
        begun = ", or check the model it starts from" if update == 1 else ""
        advice = f"Try a lower rate (--set {rate}=...) in another folder{begun}"
        super().__init__(f"Training diverged at update {update}: {found}. {kept} {advice}.")


class StoreError(DemeritError):
    """A dataset folder that cannot be read or written."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """`reason` is the end of the sentence."""
        self.path, self.reason = str(path), reason
        super().__init__(f"{path}: {reason}.")


class StoreBusy(StoreError):
    """Another process writes to the folder."""

    def __init__(self, path: str | Path, holder: str) -> None:
        """`holder` is the process that holds the lock."""
        self.holder = holder
        super().__init__(path, f"another process is writing to this folder ({holder}); wait until it ends or stop it")


class StaleRewards(StoreError):
    """Rewards of an episode that has changed since it was scored, or of an earlier version of the model."""

    def __init__(self, path: str | Path, episode: str, is_model: bool = False) -> None:
        """`is_model`: the model has changed, not the episode."""
        self.episode, self.is_model = episode, is_model
        what = "the model" if is_model else f"episode {_shorten(repr(episode))}"
        super().__init__(path, f"{what} has changed since it was scored: run demerit score again")


def _shorten(value: object, most: int = 400) -> str:
    """Cut a long text: files can hold values of any length."""
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _some(label: str, names: Sequence[str], most: int = 5) -> str:
    if not names:
        return f"nothing {label}"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} {label}: {', '.join(names[:most])}{more}"
