"""Prompts by chat template, token in, token out.

The opening of a conversation is rendered whole. From then on only what the template puts between the end of the
model's reply and the next point of generation is rendered and tokenised; what the model sampled stays as it is. Where a
template leaves out what earlier replies thought, the conversation is rendered anew around what is left of them.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from typing import Any

from earl.agents.parser import THINK_CLOSE, THINK_OPEN
from earl.agents.template import Message, Template, TemplateError
from earl.errors import EarlError, translated
from earl.trajectory import Author

# They stand for the model's reply and for a message while the text around them is measured.
_REPLY, _CONTENT = "\x02reply\x03", "\x02content\x03"
_THOUGHT = f"{THINK_OPEN}{_CONTENT}{THINK_CLOSE}\n\n{_REPLY}"
_ASKED: Message = {"role": "user", "content": "?"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that a prompt gains, and the author of each.

    Example:
        Piece(tokens=[user, "1", "2", end, assistant], authors=[TEMPLATE, ENVIRONMENT, ENVIRONMENT, TEMPLATE, TEMPLATE])
    """

    tokens: tuple[int, ...]
    authors: bytes  # one value of Author per token


def _author(role: str) -> Author:
    return Author.TOOL if role == "tool" else Author.ENVIRONMENT


def stop_ids(tokenizer: Any) -> frozenset[int]:
    """The tokens that end a reply: end of sequence, and what the model's generation settings name beside it."""
    return frozenset({tokenizer.eos_token_id, *getattr(tokenizer, "stop_ids", ())})


def _special_words(tokenizer: Any) -> re.Pattern[str] | None:
    """The texts of all special tokens."""
    values = [[own] if isinstance(own, str) else own for own in tokenizer.special_tokens_map.values()]
    named = chain(*(own for own in values if isinstance(own, list)))
    added = [token.content for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special]
    found = sorted({*map(str, named), *added} - {""}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, found))) if found else None


class Chat:
    """A tokenizer with its chat template, seen as a maker of pieces. Pieces are cached: boards come back often.

    Args:
        tokenizer: a fast one of `transformers`, since authors are told by the spans of characters of its tokens.
        settings: what the template is given by name, such as enable_thinking.
        system: text before the environment's instructions.
        examples: messages of a user and an assistant before every conversation.
        tools: JSON schemas of the environment's tools, for the template's own `tools`. A template that shows none of
            them is told of them in words, behind the environment's instructions.
    """

    def __init__(
        self,
        tokenizer: Any,
        settings: Mapping[str, Any] | None = None,
        system: str = "",
        examples: Sequence[Message] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.stop = stop_ids(tokenizer)
        self._system, self._examples = system, [*examples]
        with translated(self._unusable):
            source = tokenizer.get_chat_template()
        if not isinstance(source, str):
            raise EarlError(self._unusable(f"it is {source!r:.99}, not a text"))
        self._template = Template(source, {**tokenizer.special_tokens_map, **(settings or {})}, tools)
        self._tools, self._special = tools, _special_words(tokenizer)
        self._frame = lru_cache(maxsize=1 << 6)(self._find_frame)
        self.opening = lru_cache(maxsize=1 << 14)(self._opening)
        self.reply = lru_cache(maxsize=1 << 16)(self._reply)
        self.forgets, self._knows_role = cache(self._forgets), cache(self._find_role)
        self.decode = lru_cache(maxsize=1 << 12)(self._decode)
        self._spoken = lru_cache(maxsize=1 << 12)(lambda reply: tuple(self._encode(reply)["input_ids"]))

    @cached_property
    def end(self) -> int:
        """The token by which the template ends a reply."""
        return self._ending(self._after_reply("user", "?")[0])[0]

    @cached_property
    def opens_thinking(self) -> bool:
        """Whether the template opens the thinking span itself, so that a reply begins inside of it."""
        return self._render([], "user", "?")[0].rstrip().endswith(THINK_OPEN)

    def written(self, action: str) -> list[int]:
        """The tokens of a reply that the model did not write, such as a teacher's, with the end-of-turn token."""
        return [*self._spoken(action), self.end]

    def without_thoughts(
        self, instructions: str, messages: Sequence[Message], replies: Sequence[tuple[Piece, bool]]
    ) -> list[Piece]:
        """A conversation from its beginning, without what its replies thought: the pieces around what is left of each.

        Args:
            messages: those before each reply, and before the next.
            replies: as sampled, and whether each ended with the template's own end-of-turn token.
        """
        before, prefix = self._messages_before(instructions)
        messages = [{**message, "content": self._escape_special(message["content"])} for message in messages]
        first, *more = [{**message, "role": self._speaker(message["role"])} for message in messages]
        conversation = [*before, {**first, "content": prefix + first["content"]}]
        for following in more:
            conversation += [{"role": "assistant", "content": _REPLY}, following]
        head, *texts = self._text(conversation[:-1], **conversation[-1]).split(_REPLY)
        pieces = [self._message_piece(head, messages[0])]
        for (reply, closed), text, message in zip(replies, texts, messages[1:], strict=True):
            rest = text[self._ending(text)[1] :] if closed else text
            pieces += [self._without_thought(reply), self._message_piece(rest, message)]
        return pieces

    def _message_piece(self, text: str, message: Message) -> Piece:
        """A part of a conversation, with a message in it."""
        content = message["content"].strip()  # some templates strip it, too
        begin = max(text.rfind(content), 0)
        return self._tokenise(text, begin, begin + len(content), _author(message["role"]))

    def _without_thought(self, reply: Piece) -> Piece:
        """A reply without its thought, if it ended that, and the line breaks that the template drops with it."""
        if THINK_CLOSE not in self.decode(reply.tokens):
            return reply
        rest = [pair for pair in zip(reply.tokens, reply.authors, strict=True) if pair[1] != Author.THINKING]
        while self._drops_breaks and rest and (text := self.decode(rest[0][:1])) and not text.strip("\n"):
            rest.pop(0)
        return Piece(tuple(token for token, _ in rest), bytes(author for _, author in rest))

    def _forgets(self, role: str) -> bool:
        """Whether the template leaves out what a reply thought once `role` has answered it."""
        return _CONTENT not in self._answered(role, _THOUGHT)

    @cached_property
    def _drops_breaks(self) -> bool:
        return self._answered("user", _THOUGHT) == self._answered("user", _REPLY)

    def _answered(self, role: str, reply: str) -> str:
        return self._text([_ASKED, {"role": "assistant", "content": reply}], self._speaker(role), "?")

    def _escape_special(self, content: str) -> str:
        """What an environment or a tool says, in which no text becomes a special token: "<|im_end|>" is "< |im_end|>".
        Else a program whose output is a tool's result could end the message, and speak as somebody else."""
        if self._special is None:
            return content
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", content)

    def _opening(self, instructions: str, content: str) -> Piece:
        """The tokens of a conversation that begins with `content`, after system prompt, instructions and examples."""
        before, prefix = self._messages_before(instructions)
        return self._tokenise(*self._render(before, "user", self._escape_special(content), prefix), Author.ENVIRONMENT)

    def _messages_before(self, instructions: str) -> tuple[list[Message], str]:
        """The messages before the first of the environment, and what that one has to say before its own content in a
        template without a system role."""
        rules = "\n\n".join(filter(None, (self._system, instructions, instructions and self._tools_in_words)))
        if rules and self._knows_role("system"):
            return [{"role": "system", "content": rules}, *self._examples], ""
        if rules and self._examples:
            first, *others = self._examples
            return [{**first, "content": f"{rules}\n\n{first['content']}"}, *others], ""
        return [*self._examples], f"{rules}\n\n" if rules else ""

    @cached_property
    def _tools_in_words(self) -> str:
        """The tools for a template that has no place for them; nothing where it shows them."""
        if not self._tools or self._tools[0]["function"]["name"] in self._render([], "user", "?")[0]:
            return ""
        return "Tools:\n" + "\n".join(json.dumps(one["function"]) for one in self._tools)

    def _find_role(self, role: str) -> bool:
        message = {"role": role, "content": "?"}
        answered = [_ASKED, {"role": "assistant", "content": "?"}, message]
        with suppress(TemplateError):
            return bool(self._template.render([message, _ASKED] if role == "system" else answered))
        return False

    def _speaker(self, role: str) -> str:
        """Who tells what `role` said: the user, in a template without tools."""
        return role if role == "user" or self._knows_role(role) else "user"

    def _reply(self, role: str, content: str, closed: bool) -> Piece:
        """The tokens between the model's reply and the next point of generation.

        Args:
            role: author of the answer, "user" or "tool"; a template without tools gets it from the user.
            content: the answer.
            closed: whether the reply ended with the template's own end-of-turn token; if not, it is added.
        """
        text, begin, end = self._after_reply(self._speaker(role), self._escape_special(content))
        skipped = self._ending(text)[1] if closed else 0
        return self._tokenise(text[skipped:], begin - skipped, end - skipped, _author(role))

    def _after_reply(self, role: str, content: str) -> tuple[str, int, int]:
        """What stands between a reply and the next point of generation, and where in it `content` begins and ends."""
        opening = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _REPLY}]
        text, begin, end = self._render(opening, role, content)
        if _REPLY not in text[:begin]:
            raise EarlError(self._unusable("it leaves out what the model replied"))
        skipped = text.rindex(_REPLY, 0, begin) + len(_REPLY)
        return text[skipped:], begin - skipped, end - skipped

    def _ending(self, text: str) -> tuple[int, int]:
        """The end-of-turn token that a text begins with, white space aside, and where the token's text ends."""
        begin = len(text) - len(text.lstrip())
        for token, word in self._stop_words.items():
            if text.startswith(word, begin):
                return token, begin + len(word)
        shown, known = text[: len(self.tokenizer.eos_token)], ", ".join(map(repr, self._stop_words.values()))
        raise EarlError(
            f"the chat template ends a reply with {shown!r}, which is none of the model's end-of-turn "
            f"tokens ({known}); name it in eos_token_id of its generation_config.json"
        )

    @cached_property
    def _stop_words(self) -> dict[int, str]:
        """The texts of the tokens that end a reply."""
        words = {self.tokenizer.eos_token_id: self.tokenizer.eos_token}
        decode = partial(self.tokenizer.decode, skip_special_tokens=False)
        return words | {token: str(decode([token])) for token in sorted(self.stop)}

    def _render(self, before: Sequence[Message], role: str, content: str, prefix: str = "") -> tuple[str, int, int]:
        """The conversation's text, and where in it `content` begins and ends, which follows `prefix` in its message."""
        whole = self._text(before, role, prefix + content)
        key = json.dumps([before, role, prefix])
        head, tail = self._frame(key)
        if not (whole.startswith(head) and whole.endswith(tail)):  # such as the hour, in a template that tells it
            self._frame.cache_clear()
            head, tail = self._frame(key)
        return whole, len(head), len(whole) - len(tail)

    def _find_frame(self, key: str) -> tuple[str, str]:
        """What the template puts before and after a message's content, whatever that is."""
        before, role, prefix = json.loads(key)
        head, _, tail = self._text(before, role, prefix + _CONTENT).rpartition(_CONTENT)
        return head, tail

    def _text(self, before: Sequence[Message], role: str, content: str) -> str:
        try:
            return self._template.render([*before, {"role": role, "content": content}])
        except TemplateError as error:
            raise EarlError(self._unusable(str(error))) from None

    @property
    def _name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "") or "this model")

    def _unusable(self, reason: str) -> str:
        return f"the chat template of {self._name} cannot be used: {reason}; mend it, or choose another model"

    def _tokenise(self, text: str, begin: int, end: int, author: Author) -> Piece:
        encoded = self._encode(text)
        tokens = tuple(encoded["input_ids"])
        span, places = encoded.encodings[0].token_to_chars, range(len(tokens))
        first = bisect_left(places, begin, key=lambda place: span(place)[0])
        after = max(first, bisect_right(places, end, key=lambda place: span(place)[1]))
        outside = (bytes([Author.TEMPLATE]) * count for count in (first, len(tokens) - after))
        return Piece(tokens, (bytes([author]) * (after - first)).join(outside))

    def _encode(self, text: str) -> Any:
        cure = "use characters that it knows, or another model"
        with translated(lambda fault: f"the tokenizer of {self._name} cannot encode {text[:99]!r}: {fault}; {cure}"):
            return self.tokenizer(text, add_special_tokens=False, return_attention_mask=False)

    def _decode(self, tokens: tuple[int, ...]) -> str:
        """The text of sampled tokens, without the end-of-turn token."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.stop else tokens
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))
