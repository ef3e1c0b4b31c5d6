"""From the features of a convolutional front back to its images."""
