"""Features of a taught model: layout, streams and strides."""

import numpy as np
import pytest

from demerit.models.taught.features import FeatureLayout, FeatureStream, stream_features, stride_indices
from fakes import lesson_data as data
from fakes.fake_network import FakeNetwork


def test_parts_count_by_weight_not_by_width() -> None:
    layout = FeatureLayout(("main", "wrist"), ("tower", "outputs"), (100, 3))
    scales = layout.scales({"tower": 1.0, "outputs": 2.0})
    assert layout.width == len(scales) == 206
    assert np.sum(scales[:100] ** 2) == pytest.approx(0.5)
    assert np.sum(scales[100:103] ** 2) == pytest.approx(2.0)
    assert np.array_equal(scales[:103], scales[103:])


def test_stride_indices_include_the_last_frame() -> None:
    assert stride_indices(7, 3).tolist() == [0, 3, 6]
    assert stride_indices(9, 3).tolist() == [0, 3, 6, 8]
    assert stride_indices(0, 3).tolist() == []


def test_a_stream_does_not_depend_on_chunks_and_peek_changes_nothing() -> None:
    network = FakeNetwork()
    parts = ["tower", "change", "recent", "hidden", "outputs"]
    whole = FeatureStream(network, "do it", parts)
    tower = whole.embed(network.prepare(data.draw_images(data.course(True, 0), 0)))
    expected = whole.follow(tower)
    stream = FeatureStream(network, "do it", parts)
    found = []
    for start in range(0, len(tower), 7):
        chunk = tower[start : start + 7]
        if start:
            stream.peek(chunk)
        found.append(stream.follow(chunk))
    assert np.allclose(np.concatenate(found), expected, atol=1e-6)
    at = stride_indices(24, 5)
    together = stream_features(FeatureStream(network, "do it", parts), tower[at], at, 5)
    stream = FeatureStream(network, "do it", parts)
    pieces = [stream_features(stream, tower[some], some, 5) for some in (at[:3], at[3:5], at[5:])]
    assert len(together) == 6
    assert np.allclose(np.concatenate(pieces), together, atol=1e-6)
