"""Ein Ratespiel auf Deutsch, Chinesisch und mit Emoji."""

import random

WORTE = {"äpfel": "🍎", "straße": "🛣️", "猫": "🐱", "火": "🔥"}


class Raten:
    """Sage zu jedem Wort ja oder nein; 对 oder 错 gilt auch. 🙂"""

    def __init__(self, runden: int = 3):
        self.runden = runden

    def reset(self, seed=None):
        self.zufall, self.runde = random.Random(seed), 0
        return self.frage()

    def frage(self):
        wort = self.zufall.choice(sorted(WORTE))
        self.richtig = self.zufall.random() < 0.5
        bild = WORTE[wort] if self.richtig else self.zufall.choice("🌧🚗🎲")
        return f"Ist „{wort}“ {bild}?"

    def step(self, antwort):
        gut = antwort.strip() in (("ja", "对") if self.richtig else ("nein", "错"))
        self.runde += 1
        return self.frage(), 1.0 if gut else -0.1, self.runde == self.runden, False, {}


def lesen(reply: str) -> str | None:
    """Liest eine Antwort."""
    return reply.strip() or None
