"""Chat files -> records -> normalised turns. Whatever is left out is left out with a reason that is counted."""

import json

from tools.chat_template import Drop
from tools.common import UserError

ROLES = {
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "chatgpt", "bing", "bard", "model", "function_call"),
    "system": ("system", "developer"),
    "tool": ("tool", "observation", "function_response", "function"),
}
ROLE_OF = {name: role for role, names in ROLES.items() for name in names}


def read_records(path, allow_truncated=False):
    """Yields (line or record number, object) of a JSON-lines file or of one JSON array, which is read record by record."""
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as f:
            start = f.read(1)
            while start.isspace():
                start = f.read(1)
            if start == "[":
                yield from _read_array(path, f.read(), allow_truncated)
                return
            f.seek(0)
            for number, line in enumerate(f, 1):
                if not line.strip():
                    continue
                try:
                    yield number, json.loads(line)
                except json.JSONDecodeError as e:
                    raise UserError(f"not JSON: {e.msg} at column {e.colno}", f"{path}:{number}", "one JSON object a line") from None
    except UnicodeDecodeError as e:
        raise UserError(f"not UTF-8: {e.reason} at byte {e.start}", path) from None


def _read_array(path, text, allow_truncated):
    decoder, at, number = json.JSONDecoder(), 0, 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at < len(text) and text[at] == "]":
            return
        number += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as e:
            if allow_truncated:
                return
            raise UserError(f"not JSON: {e.msg}", f"{path}, record {number}", "--allow-truncated keeps the whole records before it") from None
        yield number, value


def _content(turn):
    content = turn.get("content", turn.get("value"))
    if isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, str):
                parts.append(part)
            elif isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
                parts.append(part["text"])
            else:
                raise Drop("text only")
        return "".join(parts)
    if content is not None and not isinstance(content, str):
        raise Drop("content is no text")
    return content


def _arguments(value):
    """Arguments given as JSON text become what the text means, so that both forms render alike; blank text means none."""
    for _ in range(2):  # once, and once more for text that was encoded twice
        if not isinstance(value, str):
            return value
        try:
            value = json.loads(value) if value.strip() else {}
        except json.JSONDecodeError:
            raise Drop("tool call arguments are not JSON") from None
    if isinstance(value, str):
        raise Drop("tool call arguments are not JSON")
    return value


def _tool_calls(calls):
    if not isinstance(calls, list):
        raise Drop("tool_calls is no list")
    out = []
    for call in calls:
        if not isinstance(call, dict):
            raise Drop("tool call is no object")
        call = dict(call)
        holder = call
        if isinstance(call.get("function"), dict):
            holder = call["function"] = dict(call["function"])
        if not isinstance(holder.get("name"), str):
            raise Drop("tool call without a name")
        holder["arguments"] = _arguments(holder["arguments"] if holder.get("arguments") is not None else {})
        out.append(call)
    return out


def normalise(record):
    """(messages, tools, notes). Raises Drop."""
    if not isinstance(record, dict):
        raise Drop("record is no object")
    notes = []
    turns = record.get("messages")
    if turns is None:
        turns = record.get("conversations")
    elif record.get("conversations") is not None:
        notes.append("messages and conversations: messages used")
    if turns is None:
        raise Drop("no messages")
    if not isinstance(turns, list):
        raise Drop("messages is no list")
    if not turns:
        raise Drop("no turns")
    messages = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise Drop("turn is no object")
        name = turn.get("role", turn.get("from"))
        role = ROLE_OF.get(name.strip().lower()) if isinstance(name, str) else None
        if role is None:
            raise Drop(f"unknown role {name}")
        message = {k: v for k, v in turn.items() if k not in ("role", "from", "content", "value") and v is not None}
        message = {"role": role, "content": _content(turn), **message}
        if message.get("tool_calls"):
            message["tool_calls"] = _tool_calls(message["tool_calls"])
        elif message["content"] is None:
            raise Drop("no content and no tool calls")
        messages.append(message)
    if not any(m["role"] == "assistant" for m in messages):
        raise Drop("no assistant turn")
    if isinstance(record.get("system"), str) and record["system"]:
        notes.append("system text beside the messages: not used")
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError:
            raise Drop("tools is no JSON") from None
    if tools is not None and not isinstance(tools, list):
        raise Drop("tools is no list")
    return messages, tools or None, notes
