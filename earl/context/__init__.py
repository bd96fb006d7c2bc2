"""Context growth: tracked by author and turn, forecast, and acted on. Pure functions of episodes and their history."""
