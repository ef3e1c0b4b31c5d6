"""One gradient: every record of the batch that it sums over."""
