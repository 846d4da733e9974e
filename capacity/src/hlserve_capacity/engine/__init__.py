"""A simulated SGLang scheduler: radix prefix cache, KV pool, ordering, chunking, mixing, admission, retraction."""
