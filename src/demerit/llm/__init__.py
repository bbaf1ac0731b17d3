"""The client for language models behind an OpenAI-compatible address: `ChatClient` sends `ChatRequest`s."""

from demerit.llm.client import (
    ChatClient,
    ChatImage,
    ChatRequest,
    ChatResponse,
    Endpoint,
    Estimate,
    Message,
    Spending,
    Usage,
)

__all__ = [
    "ChatClient",
    "ChatImage",
    "ChatRequest",
    "ChatResponse",
    "Endpoint",
    "Estimate",
    "Message",
    "Spending",
    "Usage",
]
