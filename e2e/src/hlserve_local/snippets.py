"""What a user pastes to send a first request with each key."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """One key and what it opens."""

    client: str
    key: str
    class_name: str
    pools: tuple[str, ...]
    model: str


def curl(access: Access, base_url: str) -> str:
    """A streamed chat completion with curl, on one line."""
    body = f'{{"model": "{access.model}", "stream": true, "max_tokens": 32, "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return (
        f"curl -N {base_url}/v1/chat/completions -H 'Authorization: Bearer {access.key}' "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


def openai_python(access: Access, base_url: str) -> str:
    """A chat completion with the official OpenAI SDK."""
    return (
        "from openai import OpenAI\n"
        f'client = OpenAI(base_url="{base_url}/v1", api_key="{access.key}")\n'
        f'reply = client.chat.completions.create(model="{access.model}", max_tokens=32,\n'
        '    messages=[{"role": "user", "content": "Hello"}])\n'
        "print(reply.choices[0].message.content)"
    )


def anthropic_python(access: Access, base_url: str) -> str:
    """A message with the official Anthropic SDK."""
    return (
        "from anthropic import Anthropic\n"
        f'client = Anthropic(base_url="{base_url}", api_key="{access.key}")\n'
        f'reply = client.messages.create(model="{access.model}", max_tokens=32,\n'
        '    messages=[{"role": "user", "content": "Hello"}])\n'
        "print(reply.content[0].text)"
    )


def all_snippets(access: Access, base_url: str) -> str:
    """Headline and the three ways, ready to paste."""
    title = f"# {access.client}: class {access.class_name}, pool {', '.join(access.pools)}"
    return "\n\n".join(
        (f"{title}\n{curl(access, base_url)}", openai_python(access, base_url), anthropic_python(access, base_url))
    )
