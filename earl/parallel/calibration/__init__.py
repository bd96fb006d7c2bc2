"""Published measurements, and the fit of the throughput model's coefficients to them.

serving_throughput.csv holds 237 rows copied by hand or script from two public pages, each row with its address:

    trtllm-0.17         https://github.com/NVIDIA/TensorRT-LLM at 258c754, docs/source/performance/perf-overview.md
                        (Apache-2.0): output tokens a second at full load, offline, with a fixed number of requests
    trtllm-0.14-online  the same page: TensorRT-LLM 0.14 behind Triton, 500 requests at several rates
    lambda-vllm-0.5.4   https://github.com/LambdaLabsML/vllm-benchmark at 0e8fc5d, benchmark_v0.md: throughput of 320
                        prompts of a chat data set, and which contexts were served ("max_context_served")

A blank value says that the page has none: not run, or did not fit. layer_times.csv holds medians of per-layer and
all-reduce times from https://github.com/microsoft/vidur at 7d47513 (MIT). Numbers are facts; the pages' words and
programs are not copied.
"""
