"""Ordered products between query and key: which ones there are, and what each needs of a kernel."""
