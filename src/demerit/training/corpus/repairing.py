"""The clean-up of instructions: a chat model repairs the spelling, and rules see to it that the meaning stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path

from demerit.data.files import write_atomic
from demerit.errors import StoreError
from demerit.llm import ChatClient, Endpoint, Spending
from demerit.models.gvl import GVLConfig
from demerit.negatives.relabel.answers import Cleaned
from demerit.negatives.relabel.asking import Asking
from demerit.negatives.relabel.chain import NO_ANSWER
from demerit.negatives.relabel.repairs import wrong_repair
from demerit.negatives.relabel.wording import prompt_version
from demerit.training.corpus.preparing import Words

ROUNDS = 3


def repair(
    instructions: Collection[str],
    file: Path,
    server: GVLConfig,
    endpoint: Endpoint,
    more_tokens: int,
    progress: Callable[[int], None],
) -> tuple[Words | None, str, Spending]:
    """Repair what has to be; None where some got no answer, with the reason: the next run asks for those again.

    The file is written when all are settled. Until then answers are in the cache, where nothing is paid for twice.
    """
    if file.is_file():
        return _read(file, endpoint.model), "", Spending()
    words: dict[str, str] = {}
    rejected: list[dict[str, str]] = []
    asking = Asking(more_tokens=more_tokens)
    todo, why = sorted(set(instructions)), ""
    cache = server.cache_file() or file.with_name("answers.sqlite")
    with ChatClient(endpoint, cache, server.concurrency, server.budget, server.timeout, server.tries) as chat:
        for number in range(ROUNDS):
            again = []
            for place, said in chat.ask_all(asking.clean(one, number) for one in todo):
                told = todo[place]
                text = " ".join(said.parsed.text.split()) if isinstance(said.parsed, Cleaned) else ""
                reason = wrong_repair(told, text) if text else said.why_not or "there is no text in the answer"
                if said.kind in NO_ANSWER:
                    why = why or said.why_not
                elif reason:
                    again.append(told)
                    rejected.append({"instruction": told, "text": text, "reason": reason})
                else:
                    words[told] = text
                progress(len(words))
            todo = sorted(again)
        spent = chat.spent
    if why:
        return None, why, spent
    found = Words({one: text for one, text in sorted(words.items()) if one != text}, endpoint.model, prompt_version())
    facts = {**asdict(found), "unchanged": todo, "rejected": sorted(rejected, key=json.dumps)}
    write_atomic(file, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    return found, "", spent


def _read(file: Path, model: str) -> Words:
    try:
        facts = json.loads(file.read_text("utf-8"))
        found = Words(facts["repaired"], facts["model"], facts["prompts"])
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(file, f"it cannot be read ({error})") from error
    if (found.model, found.prompts) != (model, prompt_version()):
        told = f"the instructions were repaired by {found.model} with {found.prompts}"
        raise StoreError(file, f"{told}, and this is {model} with {prompt_version()}; choose another folder")
    return found
