"""Open checkpoints: the identity covers whatever decides the answers; wrong files and tokenizers are refused."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer

from demerit.data.frames import short_hash
from demerit.errors import BadInput
from demerit.models.published.pairwise import VLAC, Dopamine
from demerit.models.published.robometer import Robometer
from demerit.models.published.roboreward import RoboReward
from demerit.models.published.topreward import TOPReward
from demerit.models.vlm import backbone
from demerit.models.vlm.backbone import Backbone, choose_dtype
from fakes.tiny_vlm import ROBOMETER_TOKENS, tiny_adapter, tiny_checkpoint

TEXT_MODELS = (RoboReward, TOPReward, Dopamine, VLAC)


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def configure(part: str, **changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "config.json", lambda facts: facts[part].update(changes))


ROPE = {"mrope_interleaved": True, "mrope_section": [2, 3, 3], "rope_type": "default"}
SMALL_VIDEO = '{"size": {"shortest_edge": 4096, "longest_edge": 65536}}'
CHANGES: dict[str, Callable[[Path], Any]] = {
    "rope sections": configure("text_config", rope_scaling=ROPE),
    "deepstack": configure("vision_config", deepstack_visual_indexes=[0, 1, 3]),
    "epsilon": configure("text_config", rms_norm_eps=1e-3),
    "tokenizer": lambda folder: change_json(folder / "tokenizer.json", lambda facts: facts["model"]["merges"].pop()),
    "video bounds": lambda folder: (folder / "video_preprocessor_config.json").write_text(SMALL_VIDEO),
    "image bounds": lambda folder: (folder / "preprocessor_config.json").write_text('{"size": 3}'),
    "weights": lambda folder: tiny_checkpoint(folder, seed=1),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("plain") / "it")


@pytest.fixture(scope="module")
def meter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("meter") / "it", "robometer")


def identity_of(kind: Callable[..., Any], folder: Path, **options: Any) -> str:
    return str(kind(path=str(folder), device="cpu", **options).card.weights_hash)


SHAPE = (
    "VLMShape(text=TextShape(hidden=64, layers=4, heads=4, groups=2, head=16, inner=96, vocabulary={rows}, "
    "epsilon=1e-06, theta=5000000.0, sections=(4, 2, 2)), vision=VisionShape(hidden=32, depth=4, heads=2, inner=48, "
    "out=64, patch=16, merge=2, temporal=2, channels=3, side=8, deep=(0, 1, 2)), image_token=332, video_token=333, "
    "vision_start=329, vision_end=330, tied=True)"
)


def test_identities_stay_the_same(plain: Path, meter: Path, tmp_path: Path) -> None:
    """Stored rewards are valid as long as these texts do not change: a second computation, from the files alone."""

    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    def weights(*files: Path, scales: tuple[str, ...] = ()) -> str:
        return sha("\n".join([*sorted(f"{file.name} {sha(file.read_bytes())}" for file in files), *scales]).encode())

    tokenizer = sha(b"\0" + (plain / "tokenizer.json").read_bytes())
    bounds = "Bounds(low=4096, high=25165824)"
    model = plain / "model.safetensors"
    parts = [weights(model), SHAPE.format(rows=384), tokenizer, "", "torch.float32", bounds]
    for kind in TEXT_MODELS:
        assert identity_of(kind, plain) == short_hash("\n".join(parts).encode())
    beside = tiny_adapter(tmp_path / "mine", plain)
    layer = "language_model.layers.0.self_attn"
    parts[0] = weights(model, beside / "adapter_model.safetensors", scales=("2.0",))
    parts[5:] = [f"{layer}.k_proj.weight 2.0", f"{layer}.q_proj.weight 2.0", bounds]
    assert identity_of(TOPReward, plain, adapter=str(beside)) == short_hash("\n".join(parts).encode())
    base = meter.with_name("it-base") / "tokenizer.json"
    parts = [weights(*meter.glob("*.safetensors")), SHAPE.format(rows=351)]
    parts += [sha("\0".join(ROBOMETER_TOKENS).encode() + b"\0" + base.read_bytes()), "", "torch.bfloat16"]
    parts += ["Protocol(frames=8, also_progress=True)", "stride 3 exact"]
    found = identity_of(Robometer, meter, dtype="bfloat16", stride=3)
    assert found == short_hash("\n".join(parts).encode())
    # two modules whose strengths are exchanged: the same files, the same set of strengths
    strengths = ({"q_proj": 2, "k_proj": 8}, {"q_proj": 8, "k_proj": 2})
    made = [tiny_adapter(tmp_path / str(at), plain, alpha_pattern=scales) for at, scales in enumerate(strengths)]
    assert len({identity_of(RoboReward, plain, adapter=str(adapter)) for adapter in made}) == 2


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_decides_the_answers_changes_the_identity(plain: Path, tmp_path: Path, what: str) -> None:
    before = identity_of(TOPReward, plain)
    shutil.copytree(plain, tmp_path / "it")
    assert identity_of(TOPReward, tmp_path / "it") == before, "the same model in another place"
    CHANGES[what](tmp_path / "it")
    assert identity_of(TOPReward, tmp_path / "it") != before


def test_the_pixels_of_the_goal_change_the_identity(plain: Path, tmp_path: Path) -> None:
    cards = []
    for shade in (10, 10, 200):
        Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(tmp_path / "done.png")
        cards.append(Dopamine(path=str(plain), device="cpu", goal=str(tmp_path / "done.png")).card)
    assert cards[0] == cards[1]
    assert cards[0].hash() != cards[2].hash()


def test_another_family_device_or_dtype_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "internvl_chat"}')
    for options, word in (({}, "internvl_chat"), ({"device": "tpu"}, "cuda"), ({"dtype": "int3"}, "bfloat16")):
        with pytest.raises(BadInput, match=word):
            Backbone.open(str(tmp_path), **{"device": "cpu", **options})


@pytest.mark.parametrize(
    ("device", "capability", "compiles", "refused"),
    [
        ("cpu", (9, 0), True, True),
        ("cuda", (8, 6), True, True),
        ("cuda", (9, 0), False, True),
        ("cuda", (8, 9), True, False),
    ],
)
def test_eight_bits_are_refused_where_nothing_computes_them(
    device: str, capability: tuple[int, int], compiles: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(backbone, "can_compile", lambda: compiles)
    where = torch.device(device)
    if refused:
        with pytest.raises(BadInput, match=r"8\.9.*C compiler"):
            choose_dtype("fp8", where, eight_bits=True)
    else:
        assert choose_dtype("fp8", where, eight_bits=True) == torch.float8_e4m3fn
    with pytest.raises(BadInput, match="'fp8'"):
        choose_dtype("fp8", where)
    with pytest.raises(BadInput, match="fp8"):
        choose_dtype("int3", where, eight_bits=True)


def test_a_tokenizer_of_another_network_is_refused(plain: Path, meter: Path, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "it")
    change_json(tmp_path / "it/config.json", lambda facts: facts.update(image_token_id=7, transformers_version="9.9"))
    with pytest.raises(BadInput, match="token 7"):
        TOPReward(path=str(tmp_path / "it"), device="cpu")
    # Robometer's own tokens must be the last rows: one more before them shifts them
    shutil.copytree(meter, tmp_path / "meter")
    backend = Tokenizer.from_file(str(meter.with_name("it-base") / "tokenizer.json"))
    backend.add_special_tokens(["<|one_more|>"])
    backend.save(str(tmp_path / "meter/tokenizer.json"))
    with pytest.raises(BadInput, match="346 to 350"):
        Robometer(path=str(tmp_path / "meter"))
