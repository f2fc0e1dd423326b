"""Other engines that run the same methods: vLLM, SGLang and llama.cpp. Pure data in, commands and findings out.

Imports neither torch nor anything that computes: planning a launch must not cost seconds.
"""
