"""TOPReward's prefixes against a full forward pass of transformers for each, and what is computed and kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demerit.models.by_time import TimedClip
from demerit.models.vlm.backbone import Backbone
from demerit.models.vlm.network import transformers_network
from demerit.models.vlm.prefixes import PrefixScorer
from demerit.models.vlm.prompt import load_prompts
from fakes.tiny_vlm import tiny_checkpoint, tiny_config, tiny_weights
from fakes.vlm_reference import PrefixReference

TASK = "pick up the cup and put it on the plate"
PROMPTS = load_prompts("topreward")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder: Path = tiny_checkpoint(tmp_path_factory.mktemp("topreward") / "tiny", seed=2, tied=False)
    return Backbone.open(str(folder), device="cpu")


@pytest.fixture(scope="module")
def reference(backbone: Backbone) -> PrefixReference:
    weights = tiny_weights(seed=2, tied=False)
    network = transformers_network(tiny_config(tied=False), weights)
    return PrefixReference(PrefixScorer(backbone, PROMPTS), network, weights["lm_head.weight"])


def clip(count: int, height: int = 40, width: int = 70) -> TimedClip:
    frames = np.random.default_rng(count).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    return TimedClip(frames, np.arange(count) * 0.37)


@pytest.mark.parametrize(("count", "tokens"), [(1, None), (2, None), (3, 90), (8, 200), (11, 1), (11, 300), (11, None)])
def test_values_equal_the_reference(
    backbone: Backbone, reference: PrefixReference, count: int, tokens: int | None
) -> None:
    ours = PrefixScorer(backbone, PROMPTS, tokens).log_probabilities(clip(count), TASK)
    theirs = reference.log_probabilities(clip(count), TASK)
    assert ours.shape == (count,)
    assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max())
    assert count == 1 or np.ptp(theirs) > 1e-3, "negative control: the prefixes differ"


def record_passes(
    scorer: PrefixScorer, monkeypatch: pytest.MonkeyPatch, memory: int = 10**9
) -> list[tuple[int, int, int, int]]:
    """Note for every pass: tokens computed, image rows, tokens whose keys are kept, states read."""
    language, passes = scorer.backbone.network.language, []
    honest = language._run

    def noting(packed: Any, features: Any, past: Any, *, keep: bool) -> Any:
        kept = 0 if past is None else len(past.layers[0])
        passes.append((packed.tokens, 0 if features is None else len(features), kept, len(packed.wanted)))
        if packed.tokens > memory:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return honest(packed, features, past, keep=keep)

    monkeypatch.setattr(language, "_run", noting)
    return passes


def test_memory_does_not_grow_with_the_number_of_prefixes(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the frames need more passes of the same size; beside them only the trunk's keys are kept."""
    made = {}
    for count in (40, 160):
        scorer = PrefixScorer(backbone, PROMPTS, 600)
        with monkeypatch.context() as patch:
            passes = record_passes(scorer, patch)
            scorer.log_probabilities(clip(count, 32, 32), TASK)
        prompt = scorer.build_prompt(clip(count, 32, 32), TASK)
        assert all(rows <= tokens <= 600 for tokens, rows, _, _ in passes)
        assert max(kept for _, _, kept, _ in passes) == sum(map(len, prompt.trunk))
        assert sum(tokens for tokens, *_ in passes) == prompt.tree().tokens, "nothing is computed twice"
        made[count] = len(passes)
    assert made[160] > 3 * made[40]


def test_after_running_out_of_memory_it_continues_with_less(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = PrefixScorer(backbone, PROMPTS).log_probabilities(clip(12), TASK)
    scorer = PrefixScorer(backbone, PROMPTS, 100_000)
    passes = record_passes(scorer, monkeypatch, memory=250)
    np.testing.assert_allclose(scorer.log_probabilities(clip(12), TASK), calm, rtol=1e-5)
    assert max(tokens for tokens, *_ in passes) > 250 >= passes[-1][0], "it started too large and ended small"
