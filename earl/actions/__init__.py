"""External calls scheduled one by one, after ARL-Tangram (arXiv 2603.13019): when each begins, on how many cores."""
