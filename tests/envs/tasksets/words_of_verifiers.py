"""A taskset of verifiers: words backwards, with a system prompt, a setting and two weighted rewards."""

import verifiers.v1 as vf

WORDS = ("straße", "火车", "🐱🐶", "level", "earl")


class Data(vf.TaskData):
    answer: str


class Word(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def long(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) == len(self.data.answer))


class Settings(vf.TasksetConfig):
    count: int = len(WORDS)


class Words(vf.Taskset[Word, Settings]):
    def load(self):
        system = "Write the word backwards."
        for word in WORDS[: self.config.count]:
            yield Word(Data(prompt=word, answer=word[::-1], system_prompt=system), self.config.task)


__all__ = ["Words"]
