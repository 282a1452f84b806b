"""Pictures, films, pages and comparisons of results."""
