"""Requests: what is sent, what the cache key covers, and how tokens are estimated."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image
from pydantic import BaseModel

from demerit.errors import BadInput
from demerit.llm import ChatImage, ChatRequest, Endpoint, Message
from demerit.llm.request import count_image_tokens, count_text_tokens

HERE = Endpoint("http://localhost:1/v1", "m")
PIXELS = np.zeros((4, 4, 3), np.uint8)


class WordCount(BaseModel):
    words: int


class WordShare(BaseModel):
    words: float


def test_body_of_a_request() -> None:
    image = ChatImage.encode(PIXELS)
    request = ChatRequest((Message.system("be brief"), Message.user("a", image, "b")), WordCount, 0.8, 7, 99)
    body = request.body(HERE)
    assert (body["model"], body["temperature"], body["seed"], body["max_tokens"]) == ("m", 0.8, 7, 99)
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert [part["type"] for part in body["messages"][1]["content"]] == ["text", "image_url", "text"]
    assert '"words"' in body["messages"][-1]["content"], "the schema is in the prompt too"
    assert body["response_format"]["json_schema"]["strict"] is True
    assert body["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
    request = ChatRequest((Message.user("a"),), WordCount, temperature=None)
    plain = request.body(Endpoint("https://api.openai.com/v1", "m", schema_mode="none", send_seed=False))
    assert set(plain) == {"model", "messages", "max_completion_tokens"}
    loose = request.body(Endpoint("http://localhost/v1", "m", schema_mode="json_object"))
    assert loose["response_format"] == {"type": "json_object"}
    assert "response_format" not in ChatRequest((Message.user("a"),)).body(HERE)


def test_cache_key_covers_everything_that_changes_an_answer() -> None:
    start = Message.user("ab", "c"), Message.user(ChatImage.encode(PIXELS))
    base = ChatRequest(start, WordCount)
    others = [
        ChatRequest((Message.user("a", "bc"), start[1]), WordCount),
        ChatRequest((Message.system("ab", "c"), start[1]), WordCount),
        ChatRequest((start[0], Message.user(ChatImage.encode(PIXELS + 200))), WordCount),
        ChatRequest((start[1], start[0]), WordCount),
        ChatRequest(start, WordShare),
        ChatRequest(start),
        ChatRequest(start, WordCount, temperature=None),
        ChatRequest(start, WordCount, temperature=0.8),
        ChatRequest(start, WordCount, sample=1),
        ChatRequest(start, WordCount, max_tokens=5),
    ]
    keys = [base.key(HERE), *(request.key(HERE) for request in others)]
    keys += [base.key(Endpoint("http://localhost:1/v1", "n")), base.key(Endpoint("http://elsewhere/v1", "m"))]
    assert len(set(keys)) == len(keys)
    same = Endpoint("http://localhost:2/v1", "m", price_in=3, schema_mode="none")
    assert base.key(same) == ChatRequest(start, WordCount, tag="x").key(HERE) == base.key(HERE)
    # Answers that users paid for are found by these keys: they must not change.
    key = ChatRequest((Message.user("hello"),)).key(HERE)
    assert key == "ff25174ac15241e9c2474e4f2e7b3ba4498253924eebe9ef00d0639de6e1251c"


def test_token_estimates() -> None:
    # By hand: 224 x 224 is one tile; 1024 x 1024 shrinks to 768 x 768, four tiles, but has 37 x 37 patches;
    # 4000 x 1000 shrinks to 2048 x 512, four tiles, and has 143 x 36 patches.
    assert count_image_tokens(224, 224) == 85 + 170
    assert count_image_tokens(1024, 1024) == max(85 + 4 * 170, 37 * 37)
    assert count_image_tokens(4000, 1000) == max(85 + 4 * 170, 143 * 36)
    assert count_text_tokens("abc") == 1 and count_text_tokens("é" * 3) == 2
    request = ChatRequest((Message.user("abcdef", ChatImage.encode(PIXELS)), Message.user("a")))
    assert request.count_tokens() == (4 + 2 + 255) + (4 + 1)


@pytest.mark.parametrize(("shape", "size"), [((48, 64), (32, 24)), ((64, 48), (24, 32)), ((20, 30), (30, 20))])
def test_encoded_images_keep_colours_and_shape(shape: tuple[int, int], size: tuple[int, int]) -> None:
    image = np.full((*shape, 3), (20, 90, 200), np.uint8)
    image[:, : shape[1] // 2] = (220, 30, 60)
    encoded = ChatImage.encode(image, 32)
    decoded = Image.open(io.BytesIO(encoded.data))
    assert (decoded.mode, decoded.size, encoded.size, encoded.kind) == ("RGB", size, size, "jpeg")
    pixels = np.asarray(decoded).astype(int)[size[1] // 2, [2, -3]]
    assert np.abs(pixels - [(220, 30, 60), (20, 90, 200)]).max() <= 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChatImage(b"GIF89a"),
        lambda: ChatImage(b"\x89PNG\r\n\x1a\n").size,
        lambda: ChatImage.encode(PIXELS[..., 0]),
        lambda: ChatImage.encode(PIXELS.astype(np.float32)),  # type: ignore[arg-type]
        lambda: ChatRequest(()),
        lambda: ChatRequest((Message.user("a"),), max_tokens=0),
    ],
)
def test_bad_images_and_requests(make: Callable[[], object]) -> None:
    with pytest.raises(BadInput):
        make()


@pytest.mark.parametrize(
    ("url", "model", "more"),
    [
        ("https://user:hunter22@host/v1", "m", {}),
        ("https://host/v1?key=hunter22", "m", {}),
        ("host/v1", "m", {}),
        ("https://host/v1", "", {}),
        ("https://host/v1", "m", {"schema_mode": "xml"}),
        ("https://host/v1", "m", {"price_in": -1.0}),
    ],
)
def test_bad_endpoints(url: str, model: str, more: dict[str, object]) -> None:
    with pytest.raises(BadInput) as caught:
        Endpoint(url, model, **more)  # type: ignore[arg-type]
    assert "hunter22" not in str(caught.value)
