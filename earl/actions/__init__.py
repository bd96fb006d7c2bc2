"""External calls as the unit of scheduling, after ARL-Tangram (arXiv 2603.13019): which begins when, and how wide."""
