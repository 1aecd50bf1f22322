"""Where prompts come from: built-in sets, files, datasets, generators; and which of them are held out."""
