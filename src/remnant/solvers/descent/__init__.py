"""Weight differences explained by descent: the paper's own, and one that projects the duals out."""
