"""Where a checkpoint is: a folder on this machine, or a model of the Hugging Face hub, fetched once and kept.

Only the files that are read are fetched: configuration, tokenizer and safetensors. Weights as pickles stay there.
"""

from __future__ import annotations

import errno
import re
import warnings
from pathlib import Path

from demerit.errors import AmbiguityWarning, BadInput, DemeritError, MissingExtra, StoreError

SMALL_FILES = (
    "config.json",
    "config.yaml",
    "adapter_config.json",
    "peft_target_module.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
WEIGHT_FILES = (
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "custom_heads.safetensors",
)
NO_ENTRY = ("config.json", "adapter_config.json")
"""a folder with neither is no checkpoint"""
MAIN = "main"
"""what the hub gives who asks for no revision; its owners may move it"""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def located(name_or_path: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a checkpoint, fetching it from the hub if it is not a folder here.

    Args:
        name_or_path: a folder, or a hub id such as `Qwen/Qwen3-VL-4B-Instruct`.
        revision: a branch, a tag or, best, a commit on the hub; a folder has none.
        weights: whether weights are wanted, or only configuration and tokenizer.
    """
    folder = Path(name_or_path).expanduser()
    if not name_or_path or not folder.is_dir():
        if not HUB_ID.fullmatch(name_or_path) or folder.exists():
            raise BadInput("A checkpoint", "a folder, or the owner/name of a model on the hub", repr(name_or_path))
        folder = _fetched(name_or_path, revision, weights)
    elif revision is not None:
        raise BadInput(f"The checkpoint in {folder}", "no revision, because a folder has none", repr(revision))
    if not any((folder / entry).is_file() for entry in NO_ENTRY):
        cut = " (a download that was cut off? The same command, with a connection to the hub, finishes it)"
        got = "neither" + (cut if revision_of(folder) is not None else "")
        raise BadInput(str(folder), "a checkpoint with config.json (or adapter_config.json) in it", got)
    return folder


def revision_of(folder: Path) -> str | None:
    """Return the hub's commit of a fetched folder; None for any other."""
    folder = folder.absolute()
    return folder.name if folder.parent.name == "snapshots" else None


def id_of(folder: Path) -> str | None:
    """Return the owner/name of a fetched folder; None for any other."""
    kept = folder.absolute().parent.parent.name
    owner, _, name = kept.removeprefix("models--").partition("--")
    return f"{owner}/{name}" if revision_of(folder) and kept.startswith("models--") and name else None


def _fetched(name: str, revision: str | None, weights: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        raise MissingExtra("Fetching a checkpoint from the hub", "vlm") from missing
    wanted = [*SMALL_FILES, *(WEIGHT_FILES if weights else ())]
    before = _main_of(name)
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
        if revision in (None, MAIN):
            _say_commit(name, before, revision_of(folder))
        return folder
    except Exception as error:
        sentence = _sentence(error, name, revision)
        if sentence is None:
            raise
        raise sentence from error


def _main_of(name: str) -> str:
    """Return the commit that a model's main was at when it was last fetched; nothing if it never was."""
    from huggingface_hub import constants, file_download  # noqa: PLC0415

    kept = Path(constants.HF_HUB_CACHE) / file_download.repo_folder_name(repo_id=name, repo_type="model")
    try:
        return (kept / "refs" / MAIN).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _say_commit(name: str, before: str, now: str | None) -> None:
    """Say which commit a moving branch is at, the first time and whenever it has moved."""
    if now is None or now == before:
        return
    said = f"{name}: no revision is pinned, and its main on the hub may move; revision={now} keeps today's."
    if before:
        said = f"{name}: its main on the hub has moved to {now}, so that rewards of before are stale; "
        said += f"revision={before} keeps the one of before."
    warnings.warn(said, AmbiguityWarning, stacklevel=4)


def _sentence(error: Exception, name: str, revision: str | None) -> DemeritError | None:
    """Say what one of the hub client's many errors means for the person at the keyboard."""
    from huggingface_hub import errors as hub  # noqa: PLC0415

    what = f"The checkpoint {name!r}" + (f" at revision {revision!r}" if revision else "")
    if _no_room(error):
        return StoreError(
            _cache(), f"the disk is full; {what[0].lower() + what[1:]} needs more room (HF_HOME chooses another place)"
        )
    if isinstance(error, hub.GatedRepoError):
        return BadInput(what, "access", "none yet: accept its terms on its hub page, then log in with `hf auth login`")
    if isinstance(error, hub.RepositoryNotFoundError):
        return BadInput(what, "a public model on the hub", "none of that name (or a private one: `hf auth login`)")
    if isinstance(error, hub.RevisionNotFoundError):
        return BadInput(what, "a branch, tag or commit of that model", "none of that name")
    offline = (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, ConnectionError, TimeoutError)
    if isinstance(error, offline) or type(error).__module__.partition(".")[0] in {"httpx", "httpcore", "requests"}:
        reason = str(error).partition("\n")[0].removeprefix("Got: ")
        advice = "connect once to fetch it, or copy it from another machine and give the folder's path"
        return BadInput(what, f"it on this machine or a connection to the hub ({advice})", f"neither ({reason})")
    if isinstance(error, hub.HfHubHTTPError | OSError):
        return BadInput(what, "an answer of the hub and a folder to keep it in", f"{type(error).__name__}: {error}")
    return None


def _no_room(error: Exception) -> bool:
    return getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT} or "No space left" in str(error)


def _cache() -> str:
    from huggingface_hub import constants  # noqa: PLC0415

    return str(constants.HF_HUB_CACHE)
