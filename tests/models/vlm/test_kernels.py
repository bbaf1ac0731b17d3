"""The GPU's kernels, run by triton's interpreter on a CPU, against torch's functions of the same names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demerit.errors import PerformanceWarning
from demerit.models.vlm import layers
from demerit.models.vlm.config import VLMShape
from demerit.models.vlm.layers import EagerOps, EightBitMatrix
from demerit.models.vlm.network import VLMNetwork
from demerit.models.vlm.prompt import PromptTokenizer
from demerit.models.vlm.robometer import RobometerEngine, RobometerProtocol
from fakes.tiny_vlm import ROBOMETER_TOKENS, ROWS, head_shapes, tiny_config, tiny_weights, write_tokenizer

pytest.importorskip("triton", reason="kernels need triton, which has no wheel for this system")


@pytest.fixture(scope="module")
def kernels() -> Any:
    """The kernels; tests/conftest.py lets triton interpret them."""
    from demerit.models.vlm.kernels import TritonOps

    return TritonOps


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("width", [64, 96])
def test_norms_and_gates(kernels: Any, width: int) -> None:
    x, more, weight, bias = draw(5, width), draw(5, width, seed=1), draw(width, seed=2), draw(width, seed=3)
    close(kernels.rms_norm(x, weight, 1e-6), EagerOps.rms_norm(x, weight, 1e-6))
    close(kernels.silu_gate(x), EagerOps.silu_gate(x))
    for ours, theirs in zip(
        kernels.add_norm(x.clone(), more, weight, bias, 1e-6),
        EagerOps.add_norm(x.clone(), more, weight, bias, 1e-6),
        strict=True,
    ):
        close(ours, theirs)


@pytest.mark.parametrize(("heads", "groups", "size", "normed"), [(4, 2, 16, True), (6, 2, 32, False), (3, 1, 24, True)])
def test_heads(kernels: Any, heads: int, groups: int, size: int, normed: bool) -> None:
    qkv, angles = draw(7, (heads + 2 * groups) * size), draw(7, size // 2, seed=1).repeat(1, 2)
    norms = (draw(size, seed=2), draw(size, seed=3)) if normed else (None, None)
    given = (qkv, *norms, angles.cos(), angles.sin(), groups, 1e-6)
    for ours, theirs in zip(kernels.split_heads(*given), EagerOps.split_heads(*given), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("size", [16, 12])
def test_patches(kernels: Any, size: int) -> None:
    qkv, angles = draw(2, 6, 3 * 2 * size), draw(6, size // 2, seed=1).repeat(1, 2)
    given = (qkv, angles.cos(), angles.sin(), 2)
    for ours, theirs in zip(kernels.rotate_patches(*given), EagerOps.rotate_patches(*given), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize(("before", "length"), [(0, 1), (0, 70), (37, 21), (64, 1), (5, 40)])
def test_attention_reads_keys_by_their_place(kernels: Any, before: int, length: int) -> None:
    pool, order = draw(150, 2, 2, 16), torch.Generator().manual_seed(1)
    sees = torch.stack([torch.randperm(150, generator=order)[: before + length] for _ in range(3)]).int()
    q = draw(3, length, 6, 16, seed=2)
    ours, theirs, early = (torch.full_like(q, torch.nan) for _ in range(3))
    kernels.attend(q, pool, sees, ours)
    EagerOps.attend(q, pool, sees, theirs)
    close(ours, theirs)
    if length > 1:  # a token does not see the ones after it
        sees[:, -1] = sees[:, 0]
        kernels.attend(q, pool, sees, early)
        assert torch.equal(early[:, :-1], ours[:, :-1])
        assert not torch.equal(early[:, -1], ours[:, -1])


def test_eight_bits(kernels: Any) -> None:
    x, weight = draw(6, 64) * 7, draw(32, 64, seed=1)
    x[2] = 0
    rounded, scales = EagerOps.round_rows(x)
    close(kernels.round_rows(x)[1], scales)  # the interpreter rounds some values down that a GPU rounds to the nearest
    assert rounded.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(rounded.float() * scales, x, rtol=2**-4, atol=7 * 2**-9)  # three bits of fraction
    product = EightBitMatrix(weight, EagerOps()).multiply(x)
    exact = x @ weight.T
    assert 0 < (product - exact).norm() / exact.norm() < 0.05
    torch.testing.assert_close(EightBitMatrix(weight, EagerOps()).add_product(exact.clone(), x), exact + product)


@pytest.mark.parametrize(
    ("device", "capability", "head", "compiles", "chosen"),
    [
        ("cuda", (8, 0), 128, True, True),
        ("cuda", (7, 5), 128, True, False),  # too little memory for a tile
        ("cuda", (9, 0), 96, True, False),
        ("cuda", (9, 0), 8, True, False),
        ("cuda", (9, 0), 128, False, False),
        ("cpu", (9, 0), 128, True, False),
    ],
)
def test_kernels_run_where_they_can(
    kernels: Any,
    device: str,
    capability: tuple[int, int],
    head: int,
    compiles: bool,
    chosen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(layers, "can_compile", lambda: compiles)
    shape = replace(VLMShape.from_config(tiny_config()).text, head=head)
    assert type(layers.choose_ops(torch.device(device), shape)) is (kernels if chosen else EagerOps)


def test_kernels_need_triton_and_a_compiler_and_are_never_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc")
    assert not layers.can_compile()  # tests/conftest.py sets TRITON_INTERPRET
    monkeypatch.delenv("TRITON_INTERPRET")
    assert layers.can_compile()
    with monkeypatch.context() as patch, pytest.warns(PerformanceWarning, match="triton"):
        patch.setattr("importlib.util.find_spec", lambda _: None)
        assert not layers.can_compile()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.warns(PerformanceWarning, match="C compiler"):
        assert not layers.can_compile()


@pytest.mark.slow
def test_an_engine_with_kernels_equals_one_without(
    kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path)
    tokens = PromptTokenizer.read(tmp_path / "tokenizer.json", ROBOMETER_TOKENS)
    weights = {name: w for name, w in tiny_weights("robometer").items() if name != "lm_head.weight"}
    heads = {name: weights.pop(name) for name in head_shapes()}
    frames = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    answers = []
    for ops in (EagerOps(), kernels()):
        monkeypatch.setattr("demerit.models.vlm.network.choose_ops", lambda *_, ops=ops: ops)
        network = VLMNetwork(VLMShape.from_config(tiny_config(ROWS["robometer"])), weights)
        answers.append(RobometerEngine(network, heads, tokens, RobometerProtocol(2)).dense(frames, "lift the cup"))
    np.testing.assert_allclose(answers[1].progress, answers[0].progress, atol=2e-6)
    np.testing.assert_allclose(answers[1].success, answers[0].success, atol=2e-6)
    assert answers[0].progress.std() > 1e-4
