"""What runs: the training flow, its iterations, studies, pretraining; and the command line."""
