"""Files that came from anywhere: types, lengths and totals are checked before anything is made.

Every reader of data, weights, coefficients and recipes goes through here. Nothing in a file is
run, no value out of a file is formatted whole, and all that one file makes in memory is counted
in one budget, so that a small file cannot fill the machine.
"""
