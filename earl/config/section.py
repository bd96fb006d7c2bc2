"""What all sections of a recipe share."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

Share = Annotated[float, Field(gt=0)]


MOST = 10**9
"""The largest whole number that a recipe may set, apart from its seed."""


class Section(BaseModel):
    """A table of the recipe. Keys that it does not know are refused, and so are NaN, infinity and numbers past use."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _within_use(cls, value: Any, info: Any) -> Any:
        within = value.values() if isinstance(value, dict) else [value]
        if info.field_name != "seed" and any(isinstance(one, int) and abs(one) > MOST for one in within):
            raise PydanticCustomError("most", "Input should have whole numbers of at most 1,000,000,000")
        return value
