"""The store, the only authority on what is done: keys, references, pools, samples, policies, runs."""
