"""An optimiser with momentum."""

MOMENTUM = 0.9


class Momentum:
    decay = 0.0

    def __init__(self, rate: float):
        self.rate, self.speed = rate, 0.0

    def update(self, weight: float, gradient: float) -> float:
        self.speed = MOMENTUM * self.speed + gradient
        return weight * (1 - self.decay) - self.rate * self.speed


class Plain(Momentum):
    def update(self, weight: float, gradient: float) -> float:
        return weight - self.rate * gradient


OPTIMISERS = {"momentum": Momentum, "plain": Plain}
