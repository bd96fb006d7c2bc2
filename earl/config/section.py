"""What all sections of a recipe share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A table of the recipe. Keys that it does not know are refused, and so are NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
