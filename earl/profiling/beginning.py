"""A run that begins: it measures layouts first where its recipe says so, and knows what was measured before."""

from earl.config import Config
from earl.engine.model import shape
from earl.layouts import Layouts
from earl.observer import Observer
from earl.placement.stages import Stages
from earl.profiling.campaign import campaign
from earl.profiling.kept import read
from earl.profiling.key import key_of
from earl.profiling.points import SECONDS, grid_of
from earl.runs.journal import Journal
from earl.stopping import StopRequest


def measured_first(config: Config, stop: StopRequest, observer: Observer | None) -> None:
    """Measure what is not known yet, if the recipe says so, on processes that end before the run's own begin."""
    if not config.selector.profile:
        return
    if observer:
        observer.event(0, "profile", "layouts are measured before the run begins")
    profile = read(key_of(config, shape(config.model)))
    campaign(config, grid_of(config, (), (), SECONDS), profile, stop, lambda _: None)


def known_to(layouts: Layouts, placement: Stages, journal: Journal) -> None:
    """Let a new run know what was measured for recipes like its own, and note that."""
    config = placement.config
    if config.selector.kind != "auto":
        return
    profile = read(key_of(config, placement.shape))
    if not profile.timings:
        journal.event(0, "profile", "no layouts were measured here for such a run; `earl profile` would")
        return
    layouts.take(profile)
    cells = f"{len(profile.timings)} cells of layouts are known, measured here until {profile.measured_at}"
    journal.event(0, "profile", cells)
