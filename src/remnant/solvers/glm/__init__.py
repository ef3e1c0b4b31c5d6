"""Linear models: the missing record in closed form, or through the solver that made them."""
