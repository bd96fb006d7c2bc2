"""Where programs run that a model wrote: contained by the kernel, with bounds on everything that they can use."""
