"""Single-axis aircraft recovery: bring a diving or climbing aircraft back to level flight by the stick, in little time.

After Monaco, Ward and Barto, "Automated Aircraft Recovery via Reinforcement Learning" (NIPS 1997), with the pitch axis
of a made-up fighter: angle of attack a, pitch rate q, flight path angle c, speed V, height h; stick s within -1 … 1:

    a' = q - L a + (g / V) cos c       q' = M_a a + M_q q + M_s s       c' = L a - (g / V) cos c
    V' = -g sin c                      h' = V sin c                     load factor n = V L a / g
"""

from math import cos, degrees, radians, sin
from random import Random
from typing import NamedTuple

from earl.envs.tools.base import ToolEnv
from earl.errors import EarlError

GRAVITY = 9.81  # m/s²
LIFT, STIFFNESS, DAMPING, POWER = 1.0, -4.0, -3.0, 1.6
"""L in 1/s; M_a in 1/s²; M_q in 1/s; M_s in 1/s²."""
DETENTS = 4
"""Of the stick to each side."""
STEP_SECONDS, STEPS = 0.1, 10
"""Of the integration, and how many a command lasts: a second."""
GLANCE_SECONDS = 0.25
"""Of a step of the scripted controller's own prediction."""
LEAST_LOAD, MOST_LOAD = -2.0, 5.0
TIME_COST = 0.01
"""Off the reward of a recovery, for every second."""


class Flight(NamedTuple):
    attack: float  # rad
    rate: float  # rad/s
    path: float  # rad, below 0 in a dive
    speed: float  # m/s
    height: float  # m

    @property
    def load(self) -> float:
        """Load factor, in g."""
        return self.speed * LIFT * self.attack / GRAVITY

    @property
    def level(self) -> bool:
        """Within 5 degrees and 5 degrees a second of steady level flight."""
        return abs(self.path) < radians(5) and abs(self.rate) < radians(5) and abs(self.load - 1) < 1


def derivative(state: Flight, stick: float) -> Flight:
    turn = LIFT * state.attack - GRAVITY / state.speed * cos(state.path)
    moment = STIFFNESS * state.attack + DAMPING * state.rate + POWER * stick
    return Flight(state.rate - turn, moment, turn, -GRAVITY * sin(state.path), state.speed * sin(state.path))


def runge_kutta(state: Flight, stick: float, seconds: float) -> Flight:
    """One step of the classic fourth-order method."""

    def along(slope: Flight, share: float) -> Flight:
        return Flight(*(own + share * seconds * by for own, by in zip(state, slope, strict=True)))

    first = derivative(state, stick)
    second = derivative(along(first, 0.5), stick)
    third = derivative(along(second, 0.5), stick)
    fourth = derivative(along(third, 1.0), stick)
    slopes = zip(first, second, third, fourth, strict=True)
    return along(Flight(*((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in slopes)), 1.0)


class AircraftEnv(ToolEnv):
    """Fly by `stick`, a command a second, until the flight is level: a win. The ground and a load factor outside of
    -2 … 5 g end it as a loss, and so does time."""

    instructions = (
        "Bring the aircraft to level flight without hitting the ground or breaking it: the load must stay within "
        "-2 and 5 g. stick(4) pulls the nose up as hard as it can, stick(-4) pushes it down, for one second. You see "
        "path, pitch rate (degrees), load (tenths of g), speed (m/s) and height (m)."
    )
    answer_form = "(give up)"
    hint = "illegal: write stick(2), with a whole number from -4 to 4"
    max_turns = 12

    def __init__(self, steepest: int = 45) -> None:
        """`steepest`: of the dives and climbs that are begun in, in degrees."""
        if not 10 <= steepest <= 60:
            raise EarlError(f"steepest {steepest!r} is not within 10 … 60")
        self.steepest, self.state = steepest, Flight(0, 0, 0, 150, 1000)

    def stick(self, position: int) -> str:
        """Hold the stick at -4 (push) to 4 (pull) for one second."""
        if not -DETENTS <= position <= DETENTS:
            return f"error: the stick goes from {-DETENTS} to {DETENTS}"
        for _ in range(STEPS):
            self.state = runge_kutta(self.state, position / DETENTS, STEP_SECONDS)
            if self.state.height <= 0:
                return self._end(0.0, "ground strike")
            if not LEAST_LOAD <= self.state.load <= MOST_LOAD:
                return self._end(0.0, f"broken at {self.state.load:.1f} g")
        return self._end(1 - TIME_COST * self.turns, "level flight") if self.state.level else self.view()

    tools = (stick,)

    def view(self) -> str:
        own = self.state
        numbers = (degrees(own.path), degrees(own.rate), 10 * own.load, own.speed, own.height)
        return " ".join(str(round(number)) for number in numbers)

    def task(self, rng: Random) -> str:
        path = radians(rng.choice((-1, 1)) * rng.uniform(8, self.steepest))
        speed, rate = rng.uniform(120, 180), radians(rng.uniform(-8, 8))
        attack = GRAVITY * rng.uniform(0, 2) / (speed * LIFT)
        # What a dive takes at most: a second of waiting, and an arc of 1.5 g.
        radius = (speed + 40) ** 2 / (1.5 * GRAVITY)
        height = 200 + (speed * sin(-path) * 1.5 + radius * (1 - cos(path)) if path < 0 else 0) * rng.uniform(1, 1.5)
        self.state = Flight(attack, rate, path, speed, height)
        return self.view()

    def score(self, answer: str) -> float:
        return 0.0

    def solve(self, rng: Random) -> str:
        """Look ahead at every position of the stick: the nearest to level that keeps well within the limits."""
        return f"stick({min(range(-DETENTS, DETENTS + 1), key=self._cost)})"

    def random_action(self, rng: Random) -> str:
        return f"stick({rng.randint(-DETENTS, DETENTS)})"

    def _cost(self, position: int) -> float:
        state, worst = self.state, 0.0
        for number in range(8):  # a second of this command, and one with the stick let go
            state = runge_kutta(state, position / DETENTS if number < 4 else 0.0, GLANCE_SECONDS)
            worst = max(worst, state.load - MOST_LOAD + 0.5, LEAST_LOAD + 0.5 - state.load)
        return abs(state.path) + 0.5 * abs(state.rate) + 100 * worst

    def _end(self, result: float, said: str) -> str:
        self.result = result
        return said
