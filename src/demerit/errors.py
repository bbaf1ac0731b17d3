"""Everything that can go wrong, as one tree.

    DemeritError
      UnknownName(kind, name, known)       a name that a person typed and nobody registered
      MissingExtra(feature, extra)         a part of demerit whose dependencies are not installed
      BadInput(what, expected, got)        an argument, option or file that cannot be used as given
      BadEpisode(episode, expected, got)   an episode that breaks a rule of the nouns
      BadReward(model, episode, reason)    a model's answer that breaks the rules of rewards
      UnreadableVideo(path, reason)        frames that were promised and cannot be decoded
      NotApplicable(reason)                an edit that makes no sense for this episode
      WeightsMismatch(missing, unexpected) weights that do not fit the model, by name
      NonFiniteOutput()                           a network whose arithmetic broke down (NaN)
      OutOfMemory(what, detail)            work that does not fit into the memory of this machine
      ContractBroken(model, clauses)       a model that fails its conformance check
      RemoteError(url, status, message)    a reward server that answered with an error
      WriteError(path, reason, kept)       a file for which there is no room
      Diverged(update, found, kept)        training whose numbers are no longer numbers
      StoreError(path, reason)             a dataset folder that cannot be read or written
        StoreBusy(path, holder)            ... because somebody else is writing to it

Each constructor takes the facts and writes the sentence: what was given, what is allowed, what was perhaps meant.
The command line prints that sentence and exits with 1. A `DemeritWarning` is printed too, and the command continues.
`StoppedByUser` is a Ctrl-C that says what was saved.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence
from pathlib import Path

WRITE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO})
"""how the system says that nothing can be written there"""


class DemeritError(Exception):
    """The root: catch this to catch everything that demerit raises on purpose."""


class DemeritWarning(UserWarning):
    """The root of our warnings: a sentence for the person, and the work goes on."""


class AmbiguityWarning(DemeritWarning):
    """Everything works, and may not be what was meant; the sentence says why."""


class PerformanceWarning(DemeritWarning):
    """Everything works, and takes longer than it needs to; the sentence says why."""


class StoppedByUser(KeyboardInterrupt):
    """Somebody asked to stop; the sentence says what was kept and where the same command goes on."""


class UnknownName(DemeritError):
    """Nobody registered that name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Say what was asked for, the nearest known name and all of them."""
        self.kind, self.name, self.known = kind, name, sorted(known)
        near = difflib.get_close_matches(name, self.known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listing = ", ".join(self.known) or "none"
        super().__init__(f"There is no {kind} named {name!r}.{hint} Known: {listing}.")


class MissingExtra(DemeritError):
    """The feature is part of demerit, but its dependencies are not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        """Give the line that installs what is missing."""
        self.feature, self.extra = feature, extra
        super().__init__(f"{feature} needs an extra that is not installed: pip install 'demerit[{extra}]'")


class BadInput(DemeritError):
    """An argument, an option or a file that cannot be used as it was given."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        """Say what was expected and what came."""
        self.what, self.expected, self.got = what, expected, got
        super().__init__(f"{what}: expected {expected}, got {got}.")


class BadEpisode(DemeritError):
    """An episode that breaks a rule."""

    def __init__(self, episode: str, expected: str, got: object) -> None:
        """Name the episode, the rule and what was found instead."""
        self.episode, self.expected, self.got = episode, expected, got
        super().__init__(f"Episode {episode!r}: expected {expected}, got {got}.")


class BadReward(DemeritError):
    """A model's answer that breaks the rules of rewards."""

    def __init__(self, model: str, episode: str, reason: str) -> None:
        """Name the model, the episode and the rule."""
        self.model, self.episode, self.reason = model, episode, reason
        super().__init__(f"Model {model!r} gave an unusable reward for episode {episode!r}: {reason}.")


class UnreadableVideo(DemeritError):
    """Frames that were promised cannot be decoded."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """Name the file and what the decoder found."""
        self.path, self.reason = str(path), reason
        super().__init__(f"{path}: {reason}.")

    def __reduce__(self) -> tuple[type[UnreadableVideo], tuple[str, str]]:
        """Cross process boundaries with both facts (the default would keep only the sentence)."""
        return (type(self), (self.path, self.reason))


class NotApplicable(DemeritError):
    """An edit that makes no sense for this episode; counted, never hidden."""

    def __init__(self, reason: str) -> None:
        """Say why."""
        self.reason = reason
        super().__init__(reason)


class WeightsMismatch(DemeritError):
    """Weights that do not fit the model."""

    def __init__(self, missing: Sequence[str], unexpected: Sequence[str], hint: str = "") -> None:
        """List the first few names of each kind; the hint says where they were looked for and what to do."""
        self.missing, self.unexpected = list(missing), list(unexpected)
        sentence = f"The weights do not fit: {_some('missing', missing)}; {_some('unexpected', unexpected)}."
        super().__init__(f"{sentence} {hint}".rstrip())


class NonFiniteOutput(DemeritError):
    """A network whose arithmetic broke down: what it would say is nobody's answer."""

    def __init__(self) -> None:
        """Say so; the sentence also stands where single values are missing."""
        super().__init__("the network gave no number there")


class OutOfMemory(DemeritError):
    """Work that does not fit into the memory of this machine."""

    def __init__(self, what: str, detail: str) -> None:
        """Say what was being done, what the allocator said and what makes it smaller."""
        self.what, self.detail = what, detail
        advice = "Compute less at once, load it in bfloat16, take a smaller model, or end other work there"
        super().__init__(f"{what} ran out of memory ({detail}). {advice}.")


class ContractBroken(DemeritError):
    """A model that does not keep what its card and the protocol promise."""

    def __init__(self, model: str, clauses: Sequence[str]) -> None:
        """List the broken clauses."""
        self.model, self.clauses = model, list(clauses)
        super().__init__(f"Model {model!r} breaks its contract: {'; '.join(clauses)}.")


class RemoteError(DemeritError):
    """A reward server answered with an error."""

    def __init__(self, url: str, status: int, message: str) -> None:
        """Name the server and what it said."""
        self.url, self.status, self.message = url, status, message
        super().__init__(f"{url} answered {status}: {message}.")


class WriteError(DemeritError):
    """A file that cannot be written: the disk is full, or not ours to write to."""

    def __init__(self, path: str | Path, reason: str, kept: str) -> None:
        """Name the file, what the system said and, as a sentence, what is kept."""
        self.path, self.reason, self.kept = str(path), reason, kept
        super().__init__(f"{path}: it cannot be written ({reason}). {kept}")


class Diverged(DemeritError):
    """Training whose numbers are no longer numbers; going on would only write rubbish."""

    def __init__(self, update: int, found: str, kept: str, rate: str = "rate") -> None:
        """Say at which update, what was found there, as a sentence what is kept, and what the recipe calls the rate."""
        self.update, self.found, self.kept = update, found, kept
        begun = ", or look at the model that it begins with" if update == 1 else ""
        advice = f"Try a lower rate (--set {rate}=...) in another folder{begun}"
        super().__init__(f"Training broke down at update {update}: {found}. {kept} {advice}.")


class StoreError(DemeritError):
    """A dataset folder that cannot be read or written."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """Name the folder and the reason."""
        self.path, self.reason = str(path), reason
        super().__init__(f"{path}: {reason}.")


class StoreBusy(StoreError):
    """Somebody else is writing to the folder."""

    def __init__(self, path: str | Path, holder: str) -> None:
        """Say who holds the lock."""
        self.holder = holder
        super().__init__(path, f"another process is writing to this folder ({holder}); wait for it or stop it")


def _some(label: str, names: Sequence[str], most: int = 5) -> str:
    if not names:
        return f"nothing {label}"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} {label}: {', '.join(names[:most])}{more}"
