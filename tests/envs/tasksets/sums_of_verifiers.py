"""A taskset of verifiers: sums, with one reward."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        yield from (Sum(Data(prompt=f"{n}+1=", answer=str(n + 1)), self.config.task) for n in range(20))


__all__ = ["Sums"]
