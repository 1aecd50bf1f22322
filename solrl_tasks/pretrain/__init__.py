"""How the embedded model is made: architecture, data, training and measured curves, on CPU or GPU."""
