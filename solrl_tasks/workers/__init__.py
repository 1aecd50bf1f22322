"""Workers hold devices; a device is the one place where family, engine, sampler, rewards and objective meet."""
