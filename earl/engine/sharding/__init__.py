"""One model over many processes: which part of each tensor a process holds, and how it computes with that part."""
