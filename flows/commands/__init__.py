"""The commands of ``solrl``, one module each. What takes long to import is imported when a command runs."""
