"""Pushing a release to a hub, through the client that the user has. Nothing is sent before it is told twice."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any

from demerit.errors import BadInput, MissingExtra, RemoteError, StoreError
from demerit.use.release.checksums import files_of, verify
from demerit.use.release.job import Released

NAME = re.compile(r"[\w.-]+/[\w.-]+")
CONFLICT = 409


@dataclass(frozen=True)
class Push:
    """What a push would do."""

    release: Released
    repository: str

    def plan(self) -> list[str]:
        """Say what would be sent and where to, a line each."""
        files = [*files_of(self.release.folder), self.release.folder / "SHA256SUMS"]
        size = sum(path.stat().st_size for path in files)
        facts = self.release.facts
        return [
            f"make the private dataset repository {self.repository} (it must not exist)",
            f"send {len(files)} files, {size / 1e6:.1f} MB: {facts['episodes']} episodes under {facts['licence']}",
            "make it public yourself, on the hub, after PRIVACY.md's checklist",
        ]


def prepared(release: Released, repository: str) -> Push:
    """Check everything that can be checked without sending anything: the name, the sums, the client."""
    if not NAME.fullmatch(repository):
        raise BadInput("--push", "OWNER/NAME of a dataset repository", repr(repository))
    wrong = verify(release.folder)
    if wrong:
        raise StoreError(release.folder, f"it is not as it was made ({wrong[0]}); make it again before pushing it")
    _client()
    return Push(release, repository)


def push(planned: Push) -> str:
    """Make the repository and send everything; return its address."""
    client = _client()
    api: Any = client.HfApi()
    name = planned.repository
    try:
        address = api.create_repo(repo_id=name, repo_type="dataset", private=True, exist_ok=False)
        api.upload_folder(
            repo_id=name,
            repo_type="dataset",
            folder_path=str(planned.release.folder),
            commit_message=f"Release {planned.release.facts['name']}",
        )
    except Exception as error:  # the client's errors come from several libraries; each becomes a sentence
        status = getattr(getattr(error, "response", None), "status_code", 0) or 0
        if status == CONFLICT:
            raise BadInput("--push", "a repository that does not exist yet", f"{name}, which does") from error
        said = str(error).strip().splitlines()
        raise RemoteError(
            f"the hub ({name})", status, (said[0] if said else type(error).__name__).rstrip(".")
        ) from error
    return str(address)


def _client() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise MissingExtra("Pushing a release to a hub", "hub") from error
