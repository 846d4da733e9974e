"""Requests in the shape that coding agents send them: our own words in the fields and headers that the agents use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_SESSION: Final = "8f3a1c52-6a55-4f0e-9f2b-3f8f4f1b7d10"
_SHELL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
    "required": ["command"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request; `target` is the path with its query."""

    target: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


_CLAUDE_HEADERS: Final = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-claude-code-session-id": _SESSION,
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
_CACHED: Final = {"cache_control": {"type": "ephemeral"}}
_CLAUDE_PROMPT: Final[dict[str, Any]] = {
    "model": "m1",
    "system": [
        {"type": "text", "text": "You help with a repository.", **_CACHED},
        {"type": "text", "text": "Working directory: /src/app.", **_CACHED},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<reminder>Be brief.</reminder>"},
                {"type": "text", "text": "List it."},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": "app.py\ntests",
                    "is_error": False,
                    **_CACHED,
                }
            ],
        },
    ],
    "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": _SHELL}],
}
CLAUDE_CODE: Final = AgentRequest(
    "/v1/messages?beta=true",
    _CLAUDE_HEADERS,
    {
        **_CLAUDE_PROMPT,
        "max_tokens": 32_000,
        "stream": True,
        "temperature": 1,
        "metadata": {"user_id": f"user_1f2e_account__session_{_SESSION}"},
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    },
)
CLAUDE_CODE_COUNT: Final = AgentRequest("/v1/messages/count_tokens?beta=true", _CLAUDE_HEADERS, _CLAUDE_PROMPT)
CODEX: Final = AgentRequest(
    "/v1/responses",
    {
        "accept": "text/event-stream",
        "user-agent": "codex_cli_rs/0.144.0 (Debian 12.0.0; x86_64) xterm",
        "originator": "codex_cli_rs",
        "version": "0.144.0",
        "session_id": _SESSION,
        "conversation_id": _SESSION,
    },
    {
        "model": "m1",
        "instructions": "You are an agent in a terminal.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Sandbox: read-only."}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List it."}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "b3BhcXVl"},
            {"type": "function_call", "name": "shell", "arguments": '{"command": "ls"}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "app.py\ntests"},
        ],
        "tools": [
            {
                "type": "function",
                "name": "shell",
                "description": "Runs a command.",
                "strict": False,
                "parameters": _SHELL,
            },
            {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": _SESSION,
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "0b0c"},
    },
)
