"""The frozen tower and its cache."""

import pytest
import torch

from demerit.training.vlm.config import RobometerTrainConfig
from demerit.training.vlm.fit import make_encoder
from demerit.training.vlm.objectives import PairsObjective
from fakes.toy_trajectories import tiny_start, vlm_corpus

CPU = torch.device("cpu")


@pytest.mark.parametrize("fusion", [True, False])
def test_kept_features_equal_new_ones(fusion: bool) -> None:
    corpus, start = vlm_corpus((8, 9)), tiny_start()
    config = RobometerTrainConfig(frames=4, precision="float32", train_fusion=fusion)
    objective = PairsObjective(corpus, config, start.tokens, start.shape)
    images = [image for example in objective.draw(0)[:2] for image in example.images]
    encoders = [make_encoder(corpus, config.change({"cache": cache}), start, CPU) for cache in ("none", "memory")]
    new, keeping = encoders
    expected = new.encode(images, new.load_pixels(images))
    for _ in range(2):
        found = keeping.encode(images, keeping.load_pixels(images))
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert not keeping.load_pixels(images)
    assert len(new.load_pixels(images)) == len(set(images))
    with pytest.raises(KeyError):
        new.encode(images, {})
    small = make_encoder(corpus, config.change({"cache_gib": 1e-9}), start, CPU)
    small.encode(images, small.load_pixels(images))
    assert small.used_bytes == 0
