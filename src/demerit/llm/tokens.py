"""How many tokens a request will be, before a server has counted them.

The rules, on the high side on purpose because a budget leans on them:

- text: one token per 3 bytes of UTF-8 (English is nearer 4), 4 more per message;
- image: the larger of the two public rules, tiles (scaled to fit 2048 x 2048, then its short side to 768 where it is
  longer; 85 tokens and 170 per tile of 512 x 512) and patches (one token per 28 x 28 pixels of the image as sent);
- schema: its JSON, once as the response format and once in words.
"""

from __future__ import annotations

import json
import math

from demerit.llm.asks import ChatImage, ChatRequest, rules_of

BYTES_PER_TOKEN = 3
PER_MESSAGE = 4


def of_text(text: str) -> int:
    """Count text."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def of_image(width: int, height: int) -> int:
    """Count an image by its size."""
    patches = math.ceil(width / 28) * math.ceil(height / 28)
    scale = min(1.0, 2048 / max(width, height))
    scale = min(scale, 768 / min(width, height))
    tiles = math.ceil(round(width * scale) / 512) * math.ceil(round(height * scale) / 512)
    return max(85 + 170 * tiles, patches)


def of_ask(ask: ChatRequest) -> int:
    """Count everything that an ask sends."""
    total = 2 * of_text(json.dumps(rules_of(ask.schema))) if ask.schema else 0
    for message in ask.messages:
        total += PER_MESSAGE
        for part in message.parts:
            total += of_image(*part.size) if isinstance(part, ChatImage) else of_text(part)
    return total
