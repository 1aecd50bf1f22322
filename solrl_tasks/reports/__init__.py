"""Pages that people read: what a run or a study was, what it came to, and how to have it again."""
