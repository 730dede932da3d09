"""What forces the tool calls of a random model: a chat template that shows its tools, and one tool of few answers."""

from __future__ import annotations

from typing import Any

TEMPLATE = """
{%- for tool in tools or [] %}<|im_start|>tool {{ tool | tojson }}<|im_end|>{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }} {{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<call {{ call.function.name }}>
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}</call>
{%- endfor %}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant {% endif %}"""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "Weather now.", "parameters": SCHEMA}}
