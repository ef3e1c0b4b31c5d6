"""Many runs: one function mapped over specs, here or on a cluster; searches, grids and fleets."""
