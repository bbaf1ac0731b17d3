"""The client for language models behind an OpenAI-compatible address.

`ChatClient` sends `ChatRequest`s to an `Endpoint`, caches every paid answer in SQLite, keeps to a budget and returns
`ChatResponse`s. Needs the extra `chat` (openai, pydantic), which is imported on the first request.
"""

from demerit.llm.budget import Estimate, ScoringEstimate, Spending
from demerit.llm.client import ChatClient, ChatResponse
from demerit.llm.options import ChatOptions
from demerit.llm.request import ChatImage, ChatRequest, Endpoint, Message

__all__ = [
    "ChatClient",
    "ChatImage",
    "ChatOptions",
    "ChatRequest",
    "ChatResponse",
    "Endpoint",
    "Estimate",
    "Message",
    "ScoringEstimate",
    "Spending",
]
