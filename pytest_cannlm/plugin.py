"""pytest hooks; each a few lines that delegate."""
