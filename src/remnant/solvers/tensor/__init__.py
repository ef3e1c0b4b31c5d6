"""One gradient of a two-layer network by tensor decomposition (Wang, Lee, Lei 2023)."""
